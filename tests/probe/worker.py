"""Trains and evaluates models on two replicas: DIRECTORY NAME..."""

import json
import sys

import tensorflow as tf
from absl import logging

from tests.probe.broken import BROKEN
from tests.probe.sound import SOUND
from trainer import UserError


def outcome(make):
    """What a start says: an error, a warning, or nothing."""
    said = []
    logging.use_absl_handler()
    own, logging.warning = (
        logging.warning,
        lambda text, *args: said.append(text % args if args else text),
    )
    try:
        trainer = make(strategy="mirrored")
        trainer.train(1, verbose=0)
        trainer.evaluate(verbose=0)
    except UserError as error:
        return ["refused", str(error)]
    except Exception as error:  # noqa: BLE001 - it is an outcome
        return ["failed", f"{type(error).__name__}: {error}"]
    finally:
        logging.warning = own
    return ["silent", ""]


def main(directory, *names):
    cpus = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpus, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    with open(f"{directory}/outcomes.jsonl", "w") as file:
        for name, make in (BROKEN | SOUND).items():
            if not names or name in names:
                line = json.dumps([name, *outcome(make)])
                print(line, file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
