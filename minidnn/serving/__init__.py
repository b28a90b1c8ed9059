"""Serving: networks behind the Open Inference Protocol, over REST and gRPC.

``minidnn serve`` starts it.  Nothing else of minidnn imports this package; it needs the extra
``serve``.
"""
