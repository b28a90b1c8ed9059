"""Serving: networks over the Open Inference Protocol, by REST and gRPC.

``minidnn serve`` starts it.  Nothing else of minidnn imports this package; it needs the extra
``serve``.
"""
