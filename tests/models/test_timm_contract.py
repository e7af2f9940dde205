"""What timm asks of a registered model, for every name: the part that a session of timm's own tests would check, and more.

Structure is checked on the meta device for every model; numbers on the smallest model of each family.
"""

import copy
import fnmatch
import inspect
import json
from typing import Any

import pytest
import timm
import torch
from timm.layers import set_scriptable
from timm.models import FeatureInfo, get_notrace_functions, get_notrace_modules
from timm.models._input import get_model_input_config
from timm.models._manipulate import group_parameters
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

import polaformer  # noqa: F401 (registers the models)
from polaformer.models._backbone import Backbone

NAMES = timm.list_models("pola_*")

# A small model of each family, and one of each with softmax stages; 48 px leaves maps of 12, 6, 3 and 2 tokens a side.
SMALL: dict[str, dict[str, Any]] = {
    "pola_pvt_nano": {"depths": (1, 2, 1, 1)},
    "pola_pvt_tiny": {
        "embed_dims": (8, 12, 20, 24),
        "num_heads": (1, 2, 5, 3),
        "mlp_ratios": (3, 3, 2, 2),
        "depths": (1, 1, 2, 1),
        "attn_type": "LSLS",
        "la_sr_ratios": "3121",
    },
    "pola_swin_tiny": {
        "embed_dim": 12,
        "depths": (2, 2, 2, 1),
        "num_heads": (3, 1, 4, 2),
        "window_size": 7,
        "softmax_window_size": 2,
    },
    "pola_deit_tiny": {"embed_dim": 18, "depth": 3, "num_heads": 3},
}


def small(name: str, **arguments: Any) -> Any:
    torch.manual_seed(1)
    return timm.create_model(name, **{**SMALL[name], "num_classes": 7, **arguments})


@pytest.fixture(params=list(SMALL))
def name(request):
    return request.param


@pytest.fixture
def model(name):
    return small(name).eval()


@pytest.fixture
def x():
    torch.manual_seed(2)
    return torch.randn(2, 3, 48, 48)


# ---- every registered name, on the meta device


@pytest.fixture(scope="module", params=NAMES)
def meta(request) -> Any:
    with torch.device("meta"):
        return timm.create_model(request.param, device="meta", dtype=torch.float32).eval()


def test_names():
    assert NAMES == [
        "pola_deit_small",
        "pola_deit_tiny",
        "pola_pvt_large",
        "pola_pvt_medium",
        "pola_pvt_nano",
        "pola_pvt_small",
        "pola_pvt_tiny",
        "pola_swin_base",
        "pola_swin_base_384",
        "pola_swin_small",
        "pola_swin_tiny",
    ]
    assert timm.list_models("pola_*", pretrained=True) == []


def test_configuration_matches_the_model(meta):
    cfg = meta.default_cfg
    assert {n for n, _ in meta.named_modules()} >= {info["module"] for info in meta.feature_info}
    names = meta.state_dict()
    assert f"{cfg['first_conv']}.weight" in names
    assert f"{cfg['classifier']}.weight" in names
    assert meta.in_chans == cfg["input_size"][0]
    assert meta.num_classes == cfg["num_classes"] == 1000
    data = timm.data.resolve_data_config(model=meta)
    assert data["interpolation"] == "bicubic"
    assert data["input_size"] == cfg["input_size"]


def test_feature_and_head_shapes(meta):
    size = meta.default_cfg["input_size"]
    x = torch.randn(1, *size, device="meta")
    features = meta.forward_features(x)
    assert features.shape == (1, meta.num_features, *meta.default_cfg["pool_size"])
    assert meta.forward_head(features, pre_logits=True).shape == (1, meta.head_hidden_size)
    assert meta.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    meta.to(torch.float32).reset_classifier(0)
    assert meta.num_classes == 0
    assert meta(x).shape == (1, meta.head_hidden_size)
    meta.reset_classifier(0, "")
    assert meta(x).shape == features.shape
    meta.reset_classifier(1000, "avg")


def test_without_classifier_and_pooling(model, name, x):
    assert small(name, num_classes=0, global_pool="").eval()(x).shape == model.forward_features(x).shape


def test_unknown_arguments_are_type_errors(meta):
    with pytest.raises(TypeError, match="not_an_argument"):
        timm.create_model(meta.default_cfg["architecture"], device="meta", not_an_argument=1)


def test_everything_is_made_on_the_given_device(name):
    model = small(name, device="meta", dtype=torch.float64)
    tensors = [*model.parameters(), *model.buffers()]
    assert {(t.device.type, t.dtype) for t in tensors} == {("meta", torch.float64)}


def test_weight_decay_patterns_match_parameters(meta):
    names = [n for n, _ in meta.named_parameters()]
    matched = {n for pattern in meta.no_weight_decay() for n in names if fnmatch.fnmatch(n, pattern)}
    ends = ("power", "scale", "positional_encoding", "relative_position_bias_table")
    assert matched == {n for n in names if n.endswith(ends) or n.startswith("pos_embed")}
    groups = param_groups_weight_decay(meta, 0.05, no_weight_decay_list=meta.no_weight_decay())
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert not [n for n, p in meta.named_parameters() if id(p) in decayed and n in matched]


def test_group_matcher_orders_the_layers(meta):
    for coarse in (False, True):
        groups = group_parameters(meta, meta.group_matcher(coarse=coarse), reverse=True)
        stem = groups[f"{meta.default_cfg['first_conv']}.weight"]
        head = groups[f"{meta.default_cfg['classifier']}.weight"]
        assert stem == 0
        assert head == max(groups.values())
        assert len(set(groups.values())) > 4
    scales = [group["lr_scale"] for group in param_groups_layer_decay(meta, 0.05, layer_decay=0.7)]
    assert min(scales) < max(scales) == 1


@pytest.mark.parametrize("name", ["pola_pvt_nano", "pola_pvt_tiny", "pola_swin_tiny", "pola_deit_tiny"])
def test_features_only_maps(name):
    model: Any = timm.create_model(name, features_only=True, device="meta")
    reductions = [16] * 3 if "deit" in name else [4, 8, 16, 32]
    assert model.feature_info.reduction() == reductions
    maps = model(torch.randn(1, 3, 480, 640, device="meta"))
    channels = model.feature_info.channels()
    assert [tuple(m.shape) for m in maps] == [(1, c, 480 // r, 640 // r) for c, r in zip(channels, reductions)]


# ---- numbers, on small models


def test_forward_is_head_of_features(model, x):
    torch.testing.assert_close(model(x), model.forward_head(model.forward_features(x)))


def test_every_parameter_gets_a_gradient(name, x):
    model = small(name).train()
    model(x).square().mean().backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None]


def test_frozen_models_stay_frozen(model):
    model.requires_grad_(False)
    model.reset_classifier(0)
    model.reset_classifier(0, "")
    model.set_input_size((64, 80))
    assert not [n for n, p in model.named_parameters() if p.requires_grad]
    assert get_model_input_config(model)["input_size"] == (3, 64, 80)


def test_dtype_change_after_forward(model, x):
    model(x)
    output = model.to(torch.bfloat16)(x.bfloat16())
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()


def test_gradient_checkpointing_changes_nothing(name, x):
    gradients = []
    for enable in (False, True):
        model = small(name, drop_path_rate=0.0).train()
        model.set_grad_checkpointing(enable)
        model(x).square().mean().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    torch.testing.assert_close(gradients[1], gradients[0])


def test_reset_classifier_keeps_pooling_device_dtype_and_mode(model, x):
    assert inspect.signature(model.reset_classifier).parameters["global_pool"].default is None
    pooled = model.forward_head(model.forward_features(x), pre_logits=True)
    model.reset_classifier(5)
    torch.testing.assert_close(model.forward_head(model.forward_features(x), pre_logits=True), pooled)
    assert model(x).shape == (2, 5)
    model.to(device="meta", dtype=torch.float64)
    model.reset_classifier(0)
    model.reset_classifier(2)
    assert (model.head.weight.device.type, model.head.weight.dtype) == ("meta", torch.float64)
    assert not any(module.training for module in model.modules())


def test_unpooled_classifier_gives_a_map_whose_mean_is_the_logits(model, x):
    logits = model(x)
    model.global_pool = ""
    torch.testing.assert_close(model(x).mean((2, 3)), logits)


def test_pooling_must_be_known(name):
    for error in (ValueError, AssertionError):  # ours, and the one timm's callers look for
        with pytest.raises(error, match="global_pool must be 'avg' or ''"):
            small(name, global_pool="max")
        with pytest.raises(error, match="global_pool must be"):
            small(name).reset_classifier(3, "catavgmax")


def test_drop_rates_act_in_training_only(name, x):
    model = small(name, drop_rate=0.4, proj_drop_rate=0.3, drop_path_rate=0.2)
    rates = [m.drop_prob for m in model.modules() if hasattr(m, "drop_prob")]
    assert max(rates) == pytest.approx(0.2)
    assert rates == sorted(rates)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_intermediates(model, x):
    infos = FeatureInfo(model.feature_info, len(model.feature_info))
    final, maps = model.forward_intermediates(x)
    torch.testing.assert_close(final, model.forward_features(x))
    assert [m.shape[1] for m in maps] == infos.channels()
    assert [m.shape[2] for m in maps] == [-(-48 // r) for r in infos.reduction()]
    last_two = model.forward_intermediates(x, indices=2, intermediates_only=True)
    torch.testing.assert_close(last_two, maps[-2:])
    chosen = model.forward_intermediates(x, indices=[0, -1], intermediates_only=True)
    torch.testing.assert_close(chosen, [maps[0], maps[-1]])
    for norm in (False, True):
        _, stopped = model.forward_intermediates(x, indices=[0], norm=norm, stop_early=True)
        assert stopped[0].shape == maps[0].shape
    with_norm = model.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)
    torch.testing.assert_close(with_norm[0], final)


def test_pruning(name, model, x):
    logits = model(x)
    maps = model.forward_intermediates(x, intermediates_only=True)
    last = len(maps) - 1
    whole = copy.deepcopy(model)
    whole.prune_intermediate_layers([last], prune_head=False)
    torch.testing.assert_close(whole(x), logits)
    for index in range(last + 1):
        pruned = copy.deepcopy(model)
        take = pruned.prune_intermediate_layers([index - last - 1], prune_norm=True)
        assert take == [index]
        assert pruned.num_features == pruned.head_hidden_size == maps[index].shape[1]
        torch.testing.assert_close(pruned.forward_features(x), maps[index])
        selected = pruned.forward_intermediates(x, indices=take, intermediates_only=True)
        torch.testing.assert_close(selected[0], maps[index])
        pruned.reset_classifier(3, "avg")
        assert pruned(x).shape == (2, 3)
        pruned.set_input_size(64)
        pruned.train()(x).sum().backward()
        assert not [n for n, p in pruned.named_parameters() if p.grad is None]


@pytest.mark.parametrize("out_indices", [(0,), (1,), (0, 2), (1, 2), 2])
def test_features_only_leaves_no_parameter_without_gradient(name, x, out_indices):
    model = small(name, features_only=True, out_indices=out_indices, drop_path_rate=0.0).train()
    maps = model(x)
    assert [m.shape[1] for m in maps] == model.feature_info.channels()
    sum(m.square().mean() for m in maps).backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None]


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ((0, 99), "indices must lie between -{count} and {last}, got 99"),
        ((-99,), "indices must lie between -{count} and {last}, got -99"),
        (99, "indices must be from 1 to {count} to name the last maps, got 99"),
        (0, "indices must be from 1 to {count} to name the last maps, got 0"),
        ((), "indices must name at least one map, got none"),
    ],
    ids=str,
)
def test_feature_maps_that_are_not_there(name, model, x, indices, message):
    count = len(model.feature_info)
    message = message.format(count=count, last=count - 1)
    with pytest.raises(ValueError, match=message):
        small(name, features_only=True, out_indices=indices)
    with pytest.raises(ValueError, match=message):
        model.forward_intermediates(x, indices=indices)


def test_a_backbone_without_position_tables_cannot_be_made():
    with pytest.raises(TypeError, match="table_grids"):
        Backbone(32, 3, 7, "avg")  # pyright: ignore[reportAbstractUsage]


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Grad strides do not match")  # of tables of one row, whose strides mean nothing
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    "arguments", [{}, {"features_only": True}, {"features_only": True, "out_indices": (1,)}], ids=str
)
def test_distributed_training_with_default_flags(name, x, arguments):
    model = torch.nn.parallel.DistributedDataParallel(small(name, **arguments).train())
    for _ in range(2):  # the second step is the one that stops on parameters the first left without a gradient
        outputs = model(x)
        sum(output.square().mean() for output in (outputs if isinstance(outputs, list) else [outputs])).backward()


def test_features_only_equals_intermediates(name, x):
    model = small(name).eval()
    backbone = small(name, features_only=True, out_indices=(0, 1, 2)).eval()
    backbone.model.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(backbone(x), model.forward_intermediates(x, indices=[0, 1, 2], intermediates_only=True))


def test_torchscript(name, x):
    with set_scriptable(True):
        model = small(name).eval()
    scripted = torch.jit.script(model)
    for size in ((48, 48), (33, 65)):
        images = torch.randn(2, 3, *size)
        torch.testing.assert_close(scripted(images), model(images))


def test_features_only_torchscript(name, x):
    model = small(name, features_only=True, out_indices=(0, 1)).eval()
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))


@pytest.mark.filterwarnings("ignore:NOTE. The nodes obtained by tracing:UserWarning")
@pytest.mark.parametrize("train", [False, True])
def test_fx(name, x, train):
    model = small(name, drop_path_rate=0.0).train(train)
    options = {
        "leaf_modules": get_notrace_modules(),
        "autowrap_functions": get_notrace_functions(),
        "param_shapes_constant": True,
    }
    train_nodes, eval_nodes = get_graph_node_names(model, tracer_kwargs=options)
    traced = create_feature_extractor(
        model, train_return_nodes=[train_nodes[-1]], eval_return_nodes=[eval_nodes[-1]], tracer_kwargs=options
    ).train(train)
    (output,) = traced(x).values()
    torch.testing.assert_close(output, model(x))
    torch.testing.assert_close(next(iter(torch.jit.script(traced)(x).values())), output)
    output.sum().backward()
    assert not [n for n, p in traced.named_parameters() if p.grad is None]


def test_arguments_survive_json(name, x):
    arguments = json.loads(
        json.dumps({**SMALL[name], "in_chans": 2, "num_classes": 7, "global_pool": "avg", "img_size": [64, 48]})
    )
    assert timm.create_model(name, **arguments).eval()(torch.randn(1, 2, 48, 48)).shape == (1, 7)
