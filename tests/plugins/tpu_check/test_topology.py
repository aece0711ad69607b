"""Slices of a TPU, and what a reduction over one costs."""

import pytest

from trainer import UserError
from trainer_plugins.tpu_check import libtpu_process
from trainer_plugins.tpu_check.compiling import DoesNotFit, compile_for
from trainer_plugins.tpu_check.lowering import Lowered
from trainer_plugins.tpu_check.report import all_reduce_seconds
from trainer_plugins.tpu_check.topology import CHIPS, Topology


@pytest.mark.parametrize(
    ("text", "chips"),
    [
        ("v5e:1x1", 1),
        ("v5e:2x4", 8),
        ("v6e:16x16", 256),
        ("v4:2x2x1", 4),
        ("v5p:4x4x8", 128),
        ("v4:16x16x16", 4096),
        ("v5p:16x16x24", 6144),
    ],
)
def test_a_slice(text, chips):
    topology = Topology.parse(text)
    assert str(topology) == text
    assert topology.chips == chips


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e", "such as v5e:2x4"),
        ("v5e:2x2;rm", "such as v5e:2x4"),
        ("v5x:2x2", "no figures for v5x.*Valid: v4, v5e, v5p, v6e"),
        ("v5e:3x3", "no slice 3x3. Valid: 1x1, 2x2, 2x4"),
        ("v5e:2x2x1", "no slice 2x2x1"),
        ("v5p:2x2", "no slice 2x2. Valid: 2x2x1.*multiples of 4"),
        ("v5p:8x4x4", "no slice 8x4x4"),
        ("v5p:0x4x4", "no slice 0x4x4"),
        ("v4:04x04x04", "no slice 04x04x04"),
        ("v4:16x16x24", "no slice 16x16x24"),
        ("v5p:16x20x20", "no slice 16x20x20"),
    ],
)
def test_what_is_no_slice(text, message):
    with pytest.raises(UserError, match=message):
        Topology.parse(text)


def test_a_ring_takes_what_its_links_allow():
    # 2 (n - 1) / n of the bytes leave each chip.
    byte = CHIPS["v5e"].link_bytes_per_second
    assert all_reduce_seconds(Topology("v5e", "1x1"), byte) == 0.0
    # Two of a chip's four links lead to a neighbour.
    found = all_reduce_seconds(Topology("v5e", "2x2"), byte)
    assert found == pytest.approx(2 * 3 / 4 / (2 / 4))
    # All four.
    found = all_reduce_seconds(Topology("v5e", "16x16"), byte)
    assert found == pytest.approx(2 * 255 / 256)
    # Two of six: one neighbour along each of two dimensions.
    byte = CHIPS["v5p"].link_bytes_per_second
    found = all_reduce_seconds(Topology("v5p", "2x2x1"), byte)
    assert found == pytest.approx(2 * 3 / 4 / (2 / 6))


# A program that no chip has the memory for.
LARGE = b"""
func.func public @main(%a: tensor<68719476736xf32>) -> tensor<68719476736xf32> {
  %sum = stablehlo.add %a, %a : tensor<68719476736xf32>
  return %sum : tensor<68719476736xf32>
}
"""


@pytest.mark.long
@pytest.mark.skipif(
    libtpu_process.why_not_here() is not None,
    reason=f"{libtpu_process.why_not_here()}",
)
@pytest.mark.parametrize("kind", CHIPS)
def test_the_memory_is_what_the_compiler_states(kind):
    sides = "1x1" if CHIPS[kind].dimensions == 2 else "2x2x1"
    lowered = Lowered(LARGE, [], ("sum", 2**38))
    limit = f"of {CHIPS[kind].hbm_bytes / 2**30:.2f}G that there are"
    with pytest.raises(DoesNotFit, match=limit):
        compile_for(Topology(kind, sides), lowered, name="sum", replicas=1)
