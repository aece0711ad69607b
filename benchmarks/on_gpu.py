"""Training steps on a GPU without TensorFlow on it: are the numbers the same?

    python -m benchmarks.on_gpu lower FOLDER    # with the extra tpu-check
    python benchmarks/on_gpu.py run FOLDER      # where JAX has a GPU

`lower` makes some steps with the Trainer's own compiled step on this CPU, and
writes that step as StableHLO, with what the variables were before and after.
`run` makes the same steps with JAX alone, such as on another machine, and
compares the variables. docs/scale/gpus.md says what was seen.
"""

import argparse
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

STEPS = 20
BATCH = 256
# Of matrix products and convolutions: XLA takes TF32 on a GPU by default.
PRECISIONS = ("DEFAULT", "HIGHEST")
# Steps in a turn that is timed, and how many turns.
_TIMED, _TURNS = 100, 5
_SEED = 1


def models() -> dict[str, Callable[[], Any]]:
    """Functions that make a model; each draws random numbers in its step."""
    import keras
    from keras import layers

    def mlp() -> Any:
        return keras.Sequential(
            [
                *(keras.Input((64,)), layers.Dense(256, "relu")),
                *(layers.Dropout(0.3), layers.Dense(10)),
            ]
        )

    def convolution() -> Any:
        return keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                # A bias would have a gradient of nothing but rounding.
                layers.Conv2D(32, 3, use_bias=False),
                *(layers.BatchNormalization(), layers.ReLU()),
                *(layers.MaxPooling2D(), layers.Conv2D(64, 3, strides=2)),
                *(layers.Flatten(), layers.Dropout(0.5), layers.Dense(10)),
            ]
        )

    def transformer() -> Any:
        tokens = keras.Input((32,))
        h = layers.Dense(64)(layers.Reshape((32, 1))(tokens))
        attended = layers.MultiHeadAttention(4, 16, dropout=0.1)(h, h)
        h = layers.LayerNormalization()(h + attended)
        h = layers.LayerNormalization()(h + layers.Dense(64, "gelu")(h))
        output = layers.Dense(10)(layers.GlobalAveragePooling1D()(h))
        return keras.Model(tokens, output)

    return {"mlp": mlp, "convolution": convolution, "transformer": transformer}


def lower(folder: pathlib.Path, names: Sequence[str]) -> None:
    """Writes the step of models, and its variables before and after."""
    import jax
    import keras

    # libtpu is not to be looked for, and the step has 64-bit integers.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        keras.utils.set_random_seed(_SEED)
        _lower(models()[name](), folder, name)
        print(f"{name}: written", flush=True)


def _lower(model: Any, folder: pathlib.Path, name: str) -> None:
    import keras
    import tensorflow as tf

    from trainer import Trainer
    from trainer.step.prepare import prepare
    from trainer.tools.check.programs import RunPrograms
    from trainer_plugins.strategies.tpu.compile import traced

    random = np.random.default_rng(_SEED)
    shape = (STEPS * BATCH, *model.input_shape[1:])
    x = random.normal(size=shape).astype("float32")
    y = random.integers(10, size=len(x)).astype("int32")
    trainer = Trainer(
        model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam(1e-3, global_clipnorm=1.0),
        metrics=["accuracy"],
        data={"train": (x, y)},
        batch_size=BATCH,
        jit_compile="xla",
    )
    run = trainer._new_run()
    prepare(run.spec, training=True)
    function, trace = traced(RunPrograms(run).training())
    specs = tf.nest.flatten(trace.structured_input_signature[0])
    module = function.experimental_get_compiler_ir(*specs)(
        stage="stablehlo_serialized", platform_name="CPU"
    )
    by_handle = {id(one.handle): one for one in trace.graph.variables}
    variables = [by_handle[id(one)] for one in trace.captured_inputs]
    before = [one.numpy() for one in variables]
    for batch in batches(x, y):
        function(*map(tf.constant, batch))
    after = [one.numpy() for one in variables]
    arrays = {f"before_{i}": value for i, value in enumerate(before)}
    arrays |= {f"after_{i}": value for i, value in enumerate(after)}
    np.savez(folder / f"{name}.npz", x=x, y=y, **arrays)
    given = [x[:BATCH], y[:BATCH], *before]
    for precision in PRECISIONS:
        for platform in ("cpu", "cuda"):
            path = folder / f"{name}.{precision}.{platform}"
            path.write_bytes(
                _exported(module, given, platform=platform, precision=precision)
            )


def batches(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """The batches of the steps, in order."""
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


def _exported(
    module: bytes, given: Sequence[Any], *, platform: str, precision: str
) -> bytes:
    """A step in JAX's format for exported functions.

    It takes what the step takes, and returns its variables as they are then.
    """
    import jax
    from jax._src.export import _export
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    from trainer_plugins.strategies.tpu.libtpu_process import without_copies

    with mlir.make_ir_context() as context:
        step: Any = ir.Module.parse(module)
        without_copies(step)
        attributes = step.operation.attributes
        # Which result is whose new value.
        updates = {}
        for alias in attributes["mhlo.input_output_alias"]:
            place = ir.DictAttr(ir.DictAttr(alias)["alias"])
            number = ir.IntegerAttr(place["parameter_number"]).value
            (result,) = ir.DenseI64ArrayAttr(ir.DictAttr(alias)["output_index"])
            updates[number] = result
        for name in list(attributes):
            if name.startswith("mhlo."):
                del attributes[name]
        (main,) = [
            one
            for one in step.body.operations
            if ir.StringAttr(one.attributes["sym_name"]).value == "main"
        ]
        block = main.regions[0].blocks[0]
        ends = block.operations[len(block.operations) - 1]
        kept = [
            ends.operands[updates[i]] if i in updates else block.arguments[i]
            for i in range(2, len(given))
        ]
        _set_precision(step.operation, precision, context)
        with ir.InsertionPoint(ends), ends.location:
            ir.Operation.create(ends.operation.name, operands=kept)
        ends.operation.erase()
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(
                [one.type for one in block.arguments],
                [one.type for one in kept],
            )
        )
        for name in ("arg_attrs", "res_attrs"):
            if name in main.attributes:
                del main.attributes[name]
        assert step.operation.verify()
        text = _export._module_to_bytecode(step)

    def signature(*arrays: Any) -> tuple[Any, ...]:
        return arrays[2:]

    # Of a function with the same inputs and results, but for what it does.
    like = jax.export.export(jax.jit(signature), platforms=[platform])(*given)
    kept_all = tuple(range(len(given)))
    object.__setattr__(like, "mlir_module_serialized", text)
    object.__setattr__(like, "module_kept_var_idx", kept_all)
    return bytes(like.serialize())


def _set_precision(operation: Any, precision: str, context: Any) -> None:
    from jaxlib.mlir import ir

    value = ir.Attribute.parse(f"#stablehlo<precision {precision}>", context)
    for region in operation.regions:
        for block in region.blocks:
            for one in block.operations:
                if one.operation.name in (
                    "stablehlo.dot_general",
                    "stablehlo.dot",
                    "stablehlo.convolution",
                ):
                    one.attributes["precision_config"] = ir.ArrayAttr.get(
                        [value, value]
                    )
                _set_precision(one, precision, context)


def run(folder: pathlib.Path) -> None:
    """Makes the steps with JAX, and prints a table, as Markdown."""
    import jax

    jax.config.update("jax_enable_x64", True)
    (device,) = jax.devices()[:1]
    platform = {"gpu": "cuda"}.get(device.platform, device.platform)
    print(f"{device.device_kind}, JAX {jax.__version__}")
    print("| model | precision | moved | difference | again | integers | ms |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(folder.glob("*.npz")):
        arrays = np.load(path)
        for precision in PRECISIONS:
            blob = (folder / f"{path.stem}.{precision}.{platform}").read_bytes()
            step = jax.jit(jax.export.deserialize(bytearray(blob)).call)
            row = " | ".join(_compared(step, arrays))
            print(f"| {path.stem} | {precision} | {row} |", flush=True)


def _compared(step: Callable[..., Any], arrays: Any) -> list[str]:
    import jax

    count = sum(name.startswith("before_") for name in arrays)
    before = [arrays[f"before_{i}"] for i in range(count)]
    after = [arrays[f"after_{i}"] for i in range(count)]

    def ended() -> Any:
        values: Any = jax.device_put(before)
        for batch in batches(arrays["x"], arrays["y"]):
            values = step(*batch, *values)
        return jax.device_get(values)

    found = ended()
    floats = [i for i in range(count) if before[i].dtype.kind == "f"]
    moved, differ, again = (
        max(np.abs(one[i] - other[i]).max() for i in floats)
        for one, other in ((after, before), (found, after), (ended(), found))
    )
    same = all(
        np.array_equal(found[i], after[i])
        for i in range(count)
        if i not in floats
    )
    seconds = _seconds_a_step(step, arrays, found)
    return [
        *(f"{moved:.3g}", f"{differ:.2g}", f"{again:.2g}"),
        *("equal" if same else "different", f"{1e3 * seconds:.3g}"),
    ]


def _seconds_a_step(
    step: Callable[..., Any], arrays: Any, values: Any
) -> float:
    import jax

    batch = jax.device_put(next(batches(arrays["x"], arrays["y"])))
    turns = []
    for _ in range(_TURNS):
        began = time.perf_counter()
        for _ in range(_TIMED):
            values = step(*batch, *values)
        jax.block_until_ready(values)
        turns.append((time.perf_counter() - began) / _TIMED)
    return sorted(turns)[_TURNS // 2]


def main() -> None:
    """Runs one command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("does", choices=("lower", "run"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default="mlp,convolution,transformer")
    given = parser.parse_args()
    if given.does == "lower":
        lower(given.folder, given.models.split(","))
    else:
        run(given.folder)


if __name__ == "__main__":
    main()
