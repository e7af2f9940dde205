"""Loading weights: whatever wraps them, all or nothing, without executing what a file says."""

import argparse
import itertools
import json
import logging
import os
import pathlib
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from polaformer import load_checkpoint
from polaformer.models import PolaSwin, read_state_dict
from polaformer.models.checkpoint import identify

RELEASED = json.loads((Path(__file__).parents[1] / "data_files" / "released_state_dicts.json").read_text())


@pytest.fixture
def nano() -> Any:
    torch.manual_seed(7)
    return perturb(timm.create_model("pola_pvt_nano", num_classes=11)).eval()


def perturb(model: Any) -> Any:
    """Make every tensor differ from every fresh model's."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(torch.randn_like(tensor) * 0.1)
    return model


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def released(name):
    """A state dict as released, all zeros that share one number."""
    shapes = RELEASED[name]["state_dict"]
    return {key: torch.zeros(()).expand(shape) for key, shape in shapes.items()}


def test_equal_classes_and_size_load_bit_for_bit(nano, tmp_path):
    torch.save({"model": nano.state_dict()}, tmp_path / "nano.pth")
    fresh = timm.create_model("pola_pvt_nano", num_classes=11)
    report = load_checkpoint(fresh, tmp_path / "nano.pth")
    assert same(fresh.state_dict(), nano.state_dict())
    assert sorted(report.loaded) == sorted(nano.state_dict())
    assert (report.resized, report.rebuilt, report.skipped) == ([], [], [])


def test_other_classes_rebuild_only_the_head_and_say_so(nano, tmp_path, caplog):
    torch.save(nano.state_dict(), tmp_path / "nano.pth")
    model: Any = perturb(timm.create_model("pola_pvt_nano", num_classes=3))
    with caplog.at_level(logging.WARNING):
        report = load_checkpoint(model, tmp_path / "nano.pth")
    assert report.rebuilt == ["head.weight", "head.bias"]
    assert "rebuilt head.weight, head.bias" in str(report)
    assert "classifier starts anew" in caplog.text
    assert model.head.weight.shape == (3, 160)
    assert not model.head.bias.any()
    assert all(torch.equal(t, nano.state_dict()[n]) for n, t in model.state_dict().items() if not n.startswith("head."))


def test_backbone_without_classifier_skips_the_files(nano, tmp_path):
    torch.save(nano.state_dict(), tmp_path / "nano.pth")
    report = load_checkpoint(timm.create_model("pola_pvt_nano", num_classes=0), tmp_path / "nano.pth")
    assert report.skipped == ["head.weight", "head.bias"]


@pytest.mark.parametrize("out_indices", [(0, 1, 2, 3), (0, 1)])
def test_features_only_skips_what_it_was_built_without(nano, tmp_path, out_indices):
    torch.save(nano.state_dict(), tmp_path / "nano.pth")
    model: Any = timm.create_model("pola_pvt_nano", features_only=True, out_indices=out_indices).eval()
    load_checkpoint(model, tmp_path / "nano.pth")
    x = torch.randn(2, 3, 45, 37)
    expected = nano.forward_intermediates(x, indices=list(out_indices), intermediates_only=True)
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("key", ["block3.1.attn.kv.weight", "patch_embed1.norm.bias", "pos_embed2"])
def test_a_missing_backbone_key_is_named_and_nothing_is_loaded(nano, tmp_path, key):
    state_dict = nano.state_dict()
    del state_dict[key]
    torch.save(state_dict, tmp_path / "nano.pth")
    model = timm.create_model("pola_pvt_nano", num_classes=3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"pola_pvt_nano checkpoint, but incomplete.*missing {key}"):
        load_checkpoint(model, tmp_path / "nano.pth")
    assert same(model.state_dict(), before)


def test_an_unexpected_key_is_named(nano, tmp_path):
    torch.save(nano.state_dict() | {"block9.0.attn.kv.weight": torch.ones(2)}, tmp_path / "nano.pth")
    with pytest.raises(ValueError, match=r"unexpected block9\.0\.attn\.kv\.weight"):
        load_checkpoint(nano, tmp_path / "nano.pth")


@pytest.mark.parametrize(
    ("held", "wanted"),
    [("pola_swin_tiny", "pola_pvt_nano"), ("pola_pvt_small", "pola_pvt_nano"), ("pola_pvt_large", "pola_pvt_medium")],
)
def test_wrong_architecture_is_told_the_right_name(tmp_path, held, wanted):
    torch.save({"model": released(held)}, tmp_path / "held.pth")
    model = timm.create_model(wanted, device="cpu" if wanted == "pola_pvt_nano" else "meta")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        ValueError, match=f"held.pth is a checkpoint of {held}, not of {wanted}: load it into timm"
    ) as refusal:
        load_checkpoint(model, tmp_path / "held.pth")
    assert len(str(refusal.value).removeprefix(str(tmp_path))) < 120
    assert wanted != "pola_pvt_nano" or same(model.state_dict(), before)


@pytest.mark.parametrize("name", [n for n in RELEASED if "sr8421" not in n])
def test_released_names_are_recognised(name):
    assert identify(released(name)) == name


def test_foreign_weights_fit_no_model(tmp_path):
    torch.save(torch.nn.Linear(3, 5).state_dict(), tmp_path / "linear.pth")
    with pytest.raises(ValueError, match="it fits no registered model"):
        load_checkpoint(timm.create_model("pola_pvt_nano"), tmp_path / "linear.pth")


def test_other_input_size_resizes_tables_and_lists_them(nano, tmp_path):
    torch.save(nano.state_dict(), tmp_path / "nano.pth")
    larger = timm.create_model("pola_pvt_nano", num_classes=11, img_size=(64, 96)).eval()
    report = load_checkpoint(larger, tmp_path / "nano.pth")
    assert set(report.resized) == {
        n for n in nano.state_dict() if n.endswith("positional_encoding") or "pos_embed" in n
    }
    x = torch.randn(2, 3, 64, 96)
    torch.testing.assert_close(larger(x), nano(x))  # which resizes on the fly


def test_non_square_source_size_has_to_be_named(nano, tmp_path):
    nano.set_input_size((32, 96))
    torch.save(nano.state_dict(), tmp_path / "nano.pth")
    model = timm.create_model("pola_pvt_nano", num_classes=11).eval()
    with pytest.raises(ValueError, match=r"img_size must be given to read \S+ of 192 positions"):
        load_checkpoint(model, tmp_path / "nano.pth")
    load_checkpoint(model, tmp_path / "nano.pth", img_size=(32, 96))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(x), nano(x))


def small_swin(img_size):
    arguments = {"embed_dim": 6, "depths": (1, 1, 1, 2), "num_heads": (1, 1, 2, 2), "num_classes": 5}
    return PolaSwin(img_size, window_size=24, **arguments).eval()


@pytest.mark.parametrize("buffers", [True, False])
def test_window_models_with_and_without_buffers_of_another_size(tmp_path, buffers):
    source = perturb(small_swin(96))
    state_dict = source.state_dict()
    if buffers:
        state_dict["layers.2.blocks.0.attn.relative_position_index"] = torch.zeros(36, 36, dtype=torch.int64)
        state_dict["layers.3.blocks.1.attn_mask"] = torch.zeros(4, 36, 36)
    torch.save({"model": state_dict}, tmp_path / "swin.pth")
    model = small_swin(224)
    report = load_checkpoint(model, tmp_path / "swin.pth")
    # Stage 0 has window 24 at both sizes; the others' windows grow from 12, 6, 3 to 24, 7, 7.
    assert {name.split(".")[1] for name in report.resized} == {"1", "2", "3"}
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(model(x), source(x))
    source.load_state_dict(state_dict)  # plain loading takes the buffers too


@pytest.mark.parametrize(
    "nesting", [p for n in range(4) for p in itertools.permutations(("module.", "_orig_mod.", "model."), n)]
)
def test_prefixes_in_any_nesting(nano, tmp_path, nesting):
    prefix = "".join(nesting)
    torch.save({prefix + name: tensor for name, tensor in nano.state_dict().items()}, tmp_path / "nano.pth")
    assert same(read_state_dict(tmp_path / "nano.pth"), nano.state_dict())


@pytest.mark.parametrize("container", [None, "model", "state_dict", "model_state_dict", "module"])
def test_containers(nano, tmp_path, container):
    state_dict = nano.state_dict()
    torch.save({container: state_dict, "epoch": 3} if container else state_dict, tmp_path / "nano.pth")
    assert same(read_state_dict(tmp_path / "nano.pth"), state_dict)


def test_safetensors(nano, tmp_path):
    save_file(nano.state_dict(), tmp_path / "nano.safetensors")
    assert same(read_state_dict(tmp_path / "nano.safetensors"), nano.state_dict())


@pytest.fixture
def config_node(monkeypatch):
    """A config class as yacs pickles it, known to nobody once the file is written."""
    module = types.ModuleType("yacs.config")
    exec("class CfgNode(dict): pass", module.__dict__)
    module.CfgNode.__module__ = "yacs.config"
    monkeypatch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", module)
    node = module.CfgNode(MODEL=module.CfgNode(NAME="pola", DEPTHS=[2, 2]))
    node.__dict__["__immutable__"] = True
    return node


@pytest.mark.parametrize("zipped", [True, False])
def test_released_files_with_optimizer_and_pickled_config(nano, tmp_path, config_node, monkeypatch, zipped):
    optimizer = torch.optim.AdamW(nano.parameters())
    nano(torch.randn(1, 3, 32, 32)).sum().backward()
    optimizer.step()
    content = {
        "model": nano.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": {"num_updates": 7},
        "epoch": 299,
        "max_accuracy": np.float64(78.8),
        "best": np.float32(0.5),
        "args": argparse.Namespace(lr=5e-4, output=pathlib.PurePosixPath("x").name),
        "output_dir": pathlib.PosixPath("/somewhere/out"),
        "config": config_node,
    }
    torch.save(content, tmp_path / "released.pth", _use_new_zipfile_serialization=zipped)
    for name in ("yacs", "yacs.config"):
        monkeypatch.delitem(sys.modules, name)
    model = timm.create_model("pola_pvt_nano", num_classes=11)
    load_checkpoint(model, tmp_path / "released.pth")
    assert same(model.state_dict(), nano.state_dict())
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


class Malicious:
    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, exec])
@pytest.mark.parametrize("zipped", [True, False])
def test_malicious_pickle_is_refused_in_one_line(nano, tmp_path, function, zipped):
    trace = tmp_path / "trace"
    argument = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w')"
    content = {"model": nano.state_dict(), "config": Malicious(function, argument)}
    torch.save(content, tmp_path / "evil.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"evil\.pth refers to \S*(system|exec), which") as refusal:
        read_state_dict(tmp_path / "evil.pth")
    assert "\n" not in str(refusal.value)
    assert not trace.exists()


def broken_files(folder):
    torch.save({"model": {"a": torch.ones(1000)}}, folder / "whole.pth")
    whole = (folder / "whole.pth").read_bytes()
    save_file({"a": torch.ones(1000)}, folder / "whole.safetensors")
    tensors = (folder / "whole.safetensors").read_bytes()
    yield "empty", b""
    yield "one byte", b"\x80"
    yield "cut zip", whole[: len(whole) // 2]
    yield "cut safetensors", tensors[: len(tensors) // 2]
    middle = len(whole) // 2
    yield "changed byte", whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
    yield "text", b"no checkpoint at all\n"
    yield "picture", b"\x89PNG\r\n\x1a\n" + bytes(100)
    yield "bare pickle", pickle.dumps({"a": [1, 2]}, protocol=2)
    yield "web page", b"<!DOCTYPE html><html>Sign in</html>"


def test_broken_files_give_one_line(tmp_path):
    for name, content in broken_files(tmp_path):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"checkpoint|damaged|state dict") as refusal:
            read_state_dict(path)
        assert str(path) in str(refusal.value), name
        assert "\n" not in str(refusal.value), name


def test_no_state_dict_inside(tmp_path):
    torch.save({"epoch": 3, "notes": "x"}, tmp_path / "notes.pth")
    with pytest.raises(ValueError, match="holds no state dict"):
        read_state_dict(tmp_path / "notes.pth")


def test_a_run_folder_stands_for_its_best_weights(nano, tmp_path):
    save_file(nano.state_dict(), tmp_path / "best.safetensors")
    model = timm.create_model("pola_pvt_nano", num_classes=11)
    assert load_checkpoint(model, tmp_path).path == str(tmp_path / "best.safetensors")
    assert same(model.state_dict(), nano.state_dict())


def test_any_other_folder_is_no_checkpoint(nano, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at \S+: a folder without best\.safetensors"):
        load_checkpoint(nano, tmp_path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        read_state_dict(tmp_path / "nowhere.pth")


def test_model_of_another_library_is_refused(nano, tmp_path):
    torch.save(nano.state_dict(), tmp_path / "nano.pth")
    with pytest.raises(ValueError, match="model must be a backbone of this package, got Linear"):
        load_checkpoint(torch.nn.Linear(2, 2), tmp_path / "nano.pth")


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_classes": 11},
        {"num_classes": 3},
        {"num_classes": 0},
        {"img_size": 64},
        {"in_chans": 1},
        {"features_only": True},
    ],
    ids=str,
)
def test_through_timms_pretrained(nano, tmp_path, arguments):
    content = {"model": nano.state_dict(), "args": argparse.Namespace(lr=1.0)}
    torch.save(content, tmp_path / "released.pth")
    overlay = {"file": str(tmp_path / "released.pth"), "num_classes": 11}
    arguments = {"num_classes": 11, **arguments}
    if "features_only" in arguments:
        del arguments["num_classes"]
    model: Any = timm.create_model("pola_pvt_nano", pretrained=True, pretrained_cfg_overlay=overlay, **arguments)
    assert "state_dict" not in model.pretrained_cfg
    loaded = getattr(model, "model", model).state_dict()
    torch.testing.assert_close(loaded["block2.0.attn.qg.weight"], nano.state_dict()["block2.0.attn.qg.weight"])
    if arguments.get("num_classes") == 11:
        torch.testing.assert_close(loaded["head.weight"], nano.state_dict()["head.weight"])


@pytest.mark.parametrize("name", ["pola_pvt_tiny", "pola_swin_tiny", "pola_deit_tiny"])
def test_pretrained_without_a_file_names_the_manual_way(name):
    with pytest.raises(RuntimeError, match=rf"no weights of {name} can be downloaded.*load_checkpoint\(model, "):
        timm.create_model(name, pretrained=True)
