import torch.nn.functional as F


def window_mean(x, window: int = 4):
    """The mean of the last `window` elements, those before the first counted as 0."""
    return F.avg_pool1d(F.pad(x[:, None], (window - 1, 0)), window, stride=1)[:, 0]
