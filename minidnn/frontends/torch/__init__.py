"""The PyTorch front end: modules captured with ``torch.export``, taken as far as known.

Only :mod:`.frontend` may be imported before it has been seen that PyTorch is there.
"""
