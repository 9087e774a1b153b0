"""The table of plans: lean's beside those made by hand, whatever the number of seeds."""

from lab.plans_table import table, together


def row(model: str, seed: int, right: str, **more) -> dict:
    top1 = 100 * bin(int(right, 16)).count("1") / 8
    return {"model": model, "seed": seed, "epochs": 1, "before_judge_top1": 25.0, "before_judge_agreement": 30.0,
            "judge_top1": top1, "judge_agreement": top1, "judge_right": right, **more}  # fmt: skip


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_plan_has_the_mean_of_its_seeds_and_lean_is_compared_by_it():
    rows = [row("lean 2", 1, "ff", before_judge_top1=0.0), row("lean 2", 0, "f0"), row("fewer pixels, 2", 0, "80")]
    rows.append(row("EViT in nine blocks, 2", 0, "c0", epochs=0))
    speeds = {name: {"predicted_speedup": 2.0, "speedup": 1.9, "spread": 0.01} for name in together(rows)}
    speeds["ToMe in blocks 3, 6, 9, 2"] = {"predicted_speedup": 2.0, "speedup": 2.1, "spread": 0.0}
    told = {cells(line)[0]: cells(line)[1:] for line in table(speeds, together(rows)).splitlines()[2:]}
    assert told["**lean 2**"] == ["2.00x", "1.90x ± 1%", "2", "25.0", "75.0", "", "30.0", "75.0"]
    assert told["fewer pixels, 2"][2:5] == ["1", "25.0", "12.5"]
    assert told["fewer pixels, 2"][5].startswith("+62.5 (")
    assert told["EViT in nine blocks, 2"][2:] == ["", "25.0", "not trained", "", "30.0", ""]
    assert told["ToMe in blocks 3, 6, 9, 2"][2:] == [""] * 6
