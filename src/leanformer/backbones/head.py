"""A classifier for other classes; the rows of those that the model knows already are kept."""

from collections.abc import Sequence
from typing import Any

from timm.data import ImageNetInfo
from torch import nn


def with_head(model: Any, num_classes: int, names: Sequence[str] | None = None) -> nn.Module:
    """The model with a head for so many classes, changed itself.

    Where there is a name for each class, all are WordNet ids of ImageNet-1k and the model has its 1000 outputs, the
    rows of these classes are kept; otherwise the head is fresh.

    >>> import leanformer as lf
    >>> vit = lf.create("vit", depth=1, embed_dim=8, num_heads=1, num_classes=1000)
    >>> row = vit.head.weight[1]
    >>> torch.equal(with_head(vit, 2, ["n01440764", "n01443537"]).head.weight[1], row)
    True
    """
    known = {name: index for index, name in enumerate(ImageNetInfo("imagenet-1k").label_names())}
    rows = [known[name] for name in names or () if name in known]
    head = model.get_classifier()
    model.reset_classifier(num_classes)
    if len(rows) == len(names or ()) == num_classes and getattr(head, "out_features", 0) == len(known):
        model.get_classifier().load_state_dict({key: tensor[rows] for key, tensor in head.state_dict().items()})
    return model
