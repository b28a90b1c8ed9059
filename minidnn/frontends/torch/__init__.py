"""The PyTorch front end: captures modules with ``torch.export`` and converts known operations.

:mod:`minidnn.acceleration` uses the same converters on pieces from ``torch.compile``.  Only
:mod:`.frontend` may be imported before PyTorch is known to be installed.
"""
