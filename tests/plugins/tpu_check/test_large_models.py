"""ResNet-50 and a transformer: they compile, and cost what they must."""

import functools

import keras
import pytest

from tests.plugins.tpu_check import tpu_models
from trainer import Trainer
from trainer.step.trials.prepare import prepare
from trainer.tools.check.programs import RunPrograms
from trainer_plugins.strategies.tpu import TPU
from trainer_plugins.tpu_check import libtpu_process
from trainer_plugins.tpu_check.batch_advisor import advise
from trainer_plugins.tpu_check.compiling import DoesNotFit, compile_for
from trainer_plugins.tpu_check.lowering import lower
from trainer_plugins.tpu_check.topology import Topology

WHY_NOT = libtpu_process.why_not_here()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}"),
]
TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2")
# Multiplications and additions of an image's forward pass, each counted: Keras
# strides in the first 1x1 convolution of a stage, as the paper does (He et al.,
# 2015, table 1: 3.8e9 multiply-adds).
RESNET50 = 2 * 3.86e9


def programs(model, data, topology, *, batch_size, precision="mixed_bfloat16"):
    trainer = Trainer(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        data=data,
        batch_size=batch_size,
        precision=precision,
        strategy=TPU(tpu_topology=topology),
    )
    trainer.build()
    prepare(trainer.new_run().spec, training=True)
    return RunPrograms(trainer)


@functools.cache
def resnet50(topology, per_replica, precision):
    made = programs(
        tpu_models.resnet50,
        tpu_models.images,
        topology,
        batch_size=8,
        precision=precision,
    )
    program = made.training(4 * per_replica)
    return compile_for(
        Topology.parse(topology), lower(program), name="step", replicas=4
    )


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_resnet50_compiles(topology):
    made = resnet50(topology, 128, "mixed_bfloat16")
    assert made.all_reduces > 50  # BatchNormalization has some of its own.
    assert 0 < made.live_bytes < Topology.parse(topology).chip.hbm_bytes
    assert made.flops == pytest.approx(3 * RESNET50 * 128, rel=0.1)


def test_memory_of_resnet50_grows_with_the_batch_and_the_dtype():
    live = {
        (dtype, rows): resnet50("v5e:2x2", rows, dtype).live_bytes
        for dtype in ("mixed_bfloat16", "float32")
        for rows in (128, 256)
    }
    for dtype in ("mixed_bfloat16", "float32"):
        small, large = live[dtype, 128], live[dtype, 256]
        # All but the variables and the program doubles.
        assert 1.5 < large / small < 2.1
    for rows in (128, 256):
        half, full = live["mixed_bfloat16", rows], live["float32", rows]
        assert 1.3 < full / half < 2.1


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_transformer_compiles(topology):
    made = programs(
        tpu_models.transformer, tpu_models.words, topology, batch_size=32
    )
    found = compile_for(
        Topology.parse(topology), lower(made.training()), name="", replicas=4
    )
    width, length, blocks, words = (
        tpu_models.WIDTH,
        tpu_models.LENGTH,
        tpu_models.BLOCKS,
        tpu_models.WORDS,
    )
    tokens = 32 // 4 * length
    # Without the embedding, whose rows are looked up.
    parameters = blocks * 12 * width**2 + width * words
    attention = 12 * blocks * width * length * tokens
    expected = 6 * parameters * tokens + attention
    assert found.flops == pytest.approx(expected, rel=0.1)


def test_the_advised_batch_fits_and_the_next_does_not():
    made = programs(
        lambda: tpu_models.odd_model("large"),
        tpu_models.numbers,
        "v5e:2x2",
        batch_size=64,
        precision="float32",
    )
    topology = Topology.parse("v5e:2x2")
    rows = {row.name: row.value for row in advise(made, topology).rows}
    best = rows["batch_size"]
    assert best == 4 * rows["per replica"]

    def compiled(batch_size):
        program = made.training(batch_size)
        return compile_for(topology, lower(program), name="step", replicas=4)

    assert compiled(best).live_bytes < topology.chip.hbm_bytes
    with pytest.raises(DoesNotFit):
        compiled(2 * best)
