"""Reference implementations: what each fused op computes, in differentiable PyTorch.

This package is the single source of truth for semantics.  Its functions are held against
``torch.autograd.gradcheck``, the kernels are compared with them, and their text is what trainify
writes into a user's file, which is why they follow three rules:

* a function is straight-line code that ends in its only ``return``, or stands alone as a helper;
* it uses ``torch``, ``F`` (``torch.nn.functional``) and functions of its own module, nothing else;
* rounding is part of the meaning: casts stand where the kernel has them.

Importing ``trainify.reference`` itself does not import torch; importing one of its modules does.
"""
