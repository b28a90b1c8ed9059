"""Programs that are known to fail, and how.

Written by python -m tests.torch.programs.record."""

KNOWN: dict[str, dict[str, str]] = {
    "compile": {
        "absolute_and_root_at_zero": "wrong value",
        "activations_of_extremes": "wrong value",
        "backward_hook_of_a_module": "share",
        "backward_hook_that_changes_gradients": "share",
        "batch_norm_that_is_called_twice": "wrong gradient",
        "batch_of_one_in_training_raises": "error",
        "chain_of_writes_of_which_a_gradient_needs_one": "no error",
        "checkpoint_around_a_batch_norm": "wrong state",
        "checkpoint_of_the_optimized_module": "wrong state",
        "forward_hook_that_changes_a_result": "wrong gradient",
        "generated": "lost write",
        "reentrant_checkpoint_around_a_batch_norm": "wrong state",
        "results_of_other_dtypes": "share",
    },
    "optimize": {
        "absolute_and_root_at_zero": "wrong value",
        "activations_of_extremes": "wrong value",
        "batch_norm_that_is_called_twice": "wrong gradient",
        "chain_of_writes_of_which_a_gradient_needs_one": "no error",
        "checkpoint_around_a_batch_norm": "wrong state",
        "checkpoint_of_the_optimized_module": "wrong state",
        "generated": "lost write",
        "reentrant_checkpoint_around_a_batch_norm": "wrong state",
        "results_of_other_dtypes": "share",
    },
}
