"""What `python -m trainer.launch --help` prints."""

HELP = """\
Starts the tasks of a cluster, and restarts them after transient failures.

Usage:
  python -m trainer.launch --num_workers=2 [flags] -- FLAGS OF trainer
      A whole cluster on this machine.
  python -m trainer.launch [flags] -- FLAGS OF trainer
      Where TF_CONFIG, Slurm, Kubernetes or --task_index after the -- says
      which task this host runs: that task alone, with one launcher per host.
      Elsewhere: a cluster of 2 workers on this machine.

Each process runs python -m trainer with the flags after the --. In a cluster
on this machine, it gets a TF_CONFIG with its task. The chief's output is shown
on the terminal; each process has a log file.

When a task fails, all tasks of a cluster on this machine are restarted: at
once, and then after 1, 2, 4 ... 60 s. With parameter servers, a worker is
restarted alone, as an evaluator always is. The same failure at the same step
twice ends the whole launch, and so does exit code 2. A task that requests a
restart (exit code 75) is restarted, which does not count.

Flags:
  --num_workers=N    Processes that train; starts a cluster on this machine,
                     whatever the environment says. Default: 2.
  --num_ps=N         Parameter servers, which add a chief; starts a cluster on
                     this machine. Default: 0.
  --evaluator        Also start a process that evaluates checkpoints; starts a
                     cluster on this machine.
  --isolate          Give the cluster on this machine its own network, so that
                     no one else can reach its ports. It then cannot reach
                     anything either: no gs://, no downloads, no metadata
                     server.
  --log_dir=DIR      Where the log files go. Default: <model_dir>/logs, or a
                     new temporary folder if model_dir is remote, as in gs://.
  --max_restarts=N   How often tasks are restarted within the window; with 0,
                     the first failure ends the launch. Default: 3.
  --restart_window=SECONDS
                     How long a restart counts. Default: 3600.
  --min_workers=N    The run may go on with as few as N workers while others
                     are absent. Default: all are needed.

Example:
  python -m trainer.launch --num_workers=2 -- \\
      --gin_file=experiments/digits.gin --model_dir=/tmp/digits

SIGTERM, SIGHUP and Ctrl-C end all tasks; SIGUSR1 is forwarded to them. A task
that is stopped (SIGSTOP) for 20 s is killed and restarted.

Exit codes: 0 done; 2 a mistake in the flags or files; 75 a signal ended the
tasks and the state is saved, run the same command again; 128 plus the signal's
number if the state is not saved; else that of the process that failed for
good: 75 if it requests a restart, 128 plus a signal's number if killed.
"""
