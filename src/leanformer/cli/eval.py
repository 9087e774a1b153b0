"""leanformer eval: accuracy on a data set, with what is confused with what."""

from pathlib import Path
from typing import Any, Literal

from .checks import at_least, open_device, output_files, share
from .common import AS_NAMED, Built, Model


def eval_(
    model: Model,
    data: str,
    built: Built = AS_NAMED,
    split: str = "val",
    crop: float | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    precision: Literal["no", "bf16", "fp16"] = "no",
    compile: bool = False,
    fp8: bool = False,
    workers: int | None = None,
    confusions: int = 10,
    per_class: bool = False,
    knn: int | None = None,
    linear: bool = False,
    train_split: str = "train",
    task: str | None = None,
    output: Path | None = None,
) -> None:
    """Top-1, top-5, confused pairs and accuracy by class; size, crop and normalisation are the model's own.

    With --knn or --linear the features before the head are judged, of any model, with a head or without one. Detectors
    are judged by COCO's average precision of boxes and masks, segmenters by mean IoU and pixel accuracy.

    Example: leanformer eval lean.safetensors --data imagenet/

    Args:
        model: A model's name or a leanformer checkpoint.
        data: A folder of images, pack:PATH, hfds/PATH or wds/PATH; for detectors and segmenters a folder of COCO, VOC,
            Oxford Pets, CamVid, or pictures and label maps.
        built: Methods, weights and arguments.
        split: Which part of the data.
        crop: The share of each picture that is looked at, in the middle; 1 for pictures that are cropped already. By
            default what the model's card states.
        batch_size: Images at a time; by default 8 on a CPU and else 256.
        device: cpu, cuda, …; the fastest there is by default.
        precision: Autocast to bf16 or fp16.
        compile: Compile the model first.
        fp8: The same model with its linear layers as fp8 products as well; where the device has no fp8 units, the same
            rounded numbers are multiplied in float32.
        workers: Processes that read image files; by default as many as there are cores.
        confusions: How many pairs of confused classes to show.
        per_class: Show all classes, the worst first.
        knn: Judge the features by so many nearest neighbours among the training images, 20 as a rule, instead of the
            head.
        linear: Judge the features by a linear classifier trained on them, its learning rate found by a sweep.
        train_split: The part of the data that --knn and --linear learn from.
        task: detection or segmentation, with options as in segmentation:evaluation_size=(352,480); by default what the
            model is made for.
        output: A JSON file for the figures.
    """
    from ..measure import record, write_result
    from ..measure.terminal import console
    from . import eval_work as work

    at_least(1, batch_size=batch_size, knn=knn)
    at_least(0, workers=workers, confusions=confusions)
    share(crop=crop)
    output_files(output)
    where = str(open_device(device))
    opened = built.open(model)
    how: dict[str, Any] = {"batch_size": batch_size, "device": where, "precision": precision, "workers": workers}
    if work.is_dense(opened, task):
        work.refuse_options(crop=crop, compile=compile, fp8=fp8, knn=knn, linear=linear)
        found = work.judge_dense(model, opened, data, task, per_class, how | {"split": split})
    else:
        forms = {"": opened, "fp8": work.in_fp8(opened)} if fp8 else {"": opened}
        how |= {"compile": compile, "crop": crop}
        if knn is not None or linear:
            found = work.judge_features(model, forms, data, (train_split, split), knn, linear, how)
        else:
            found = work.judge_classes(model, forms, data, confusions, per_class, how | {"split": split})
    for table in found.tables:
        console().print(table)
    if output is not None:
        about = {"data": Path(data).name, "methods": list(built.methods), **found.about}
        write_result(record("eval", found.rows, where, **about), output)
