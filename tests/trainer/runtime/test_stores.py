"""Files in a store; `ram://` stands for one."""

import tensorflow as tf

from trainer.runtime import files

FOLDER = "ram://stores"


def write(name, text):
    path = f"{FOLDER}/{name}"
    tf.io.gfile.makedirs(path.rpartition("/")[0])
    files.write_whole(path, text)


def contents(folder):
    return {
        f"{at.removeprefix(f'{FOLDER}/{folder}').strip('/')}/{name}": (
            files.read(f"{at.rstrip('/')}/{name}").decode()
        )
        for at, _, names in tf.io.gfile.walk(f"{FOLDER}/{folder}")
        for name in names
    }


def test_the_file_that_readers_look_for_is_moved_last(monkeypatch):
    write("model/index.pb", "old")
    write("model/only_in_the_old_one", "old")
    for name in ("index.pb", "assets/words", "variables/index"):
        write(f"beside/{name}", f"new {name}")
    done = []
    rename, remove = tf.io.gfile.rename, tf.io.gfile.remove

    def renamed(source, target, overwrite=False):
        assert not tf.io.gfile.exists(f"{FOLDER}/model/index.pb")
        done.append(target.removeprefix(f"{FOLDER}/model/"))
        rename(source, target, overwrite)

    def removed(path):
        done.append(f"no {path.removeprefix(f'{FOLDER}/model/')}")
        remove(path)

    monkeypatch.setattr(tf.io.gfile, "rename", renamed)
    monkeypatch.setattr(tf.io.gfile, "remove", removed)
    files.replace_directory(
        f"{FOLDER}/beside", f"{FOLDER}/model", last="index.pb"
    )
    assert done[0] == "no index.pb"
    assert sorted(done[1:-1]) == ["assets/words", "variables/index"]
    assert done[-1] == "index.pb"
    assert contents("model") == {
        "/index.pb": "new index.pb",
        "assets/words": "new assets/words",
        "variables/index": "new variables/index",
    }
    assert not tf.io.gfile.exists(f"{FOLDER}/beside")
