"""``trainify lsp``: findings and fixes in an editor, over the Language Server Protocol.

The server shows what :mod:`trainify.engine` says and finds nothing by itself.
"""
