// Included by flashinfer, whose kernels here use nothing of it.
#pragma once
