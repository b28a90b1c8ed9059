"""cuDNN's fixed functions as a graph's layers, each one call (the strategy "cudnn")."""
