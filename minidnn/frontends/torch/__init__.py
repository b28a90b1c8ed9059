"""The PyTorch front end: modules captured with ``torch.export``, taken as far as known.

Only :mod:`.library` may be imported before it has been seen that PyTorch is there.
"""
