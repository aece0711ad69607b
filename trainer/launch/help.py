"""What `python -m trainer.launch --help` prints."""

HELP = """\
Starts tasks of a cluster and starts them again when they had bad luck.

Usage:
  python -m trainer.launch --num_workers=2 [flags] -- FLAGS OF trainer
      A whole cluster on this machine.
  python -m trainer.launch [flags] -- FLAGS OF trainer
      Where TF_CONFIG, Slurm, Kubernetes or --task_index behind the -- says
      what this host's task is: that task alone, one launcher on each host.
      Elsewhere a cluster of 2 workers on this machine.

Each process runs python -m trainer with the flags behind the --. In a cluster
on this machine it gets a TF_CONFIG that tells it its place. The chief's output
is on the terminal; each process has a log file.

A task that asks for it (exit code 75) or is ended by a signal is started again:
at once, later after 1, 2, 4 ... 60 s. After another failure it is started again
too, but the same failure at the same step twice ends all, and so does exit code
2. What a task loses because a peer was lost does not count.

Flags:
  --num_workers=N    Processes that train; makes a cluster here, whatever the
                     environment says. Default: 2.
  --num_ps=N         Parameter servers; with them a chief is started too.
                     Makes a cluster here. Default: 0.
  --evaluator        Start a process that evaluates beside the others. Makes a
                     cluster here.
  --isolate          Give the cluster on this machine a network of its own, so
                     that nobody reaches its ports. It then reaches nothing
                     either: no gs://, no downloads, no metadata server.
  --log_dir=DIR      Where the log files go. Default: <model_dir>/logs; a new
                     temporary folder if model_dir is remote, such as gs://.
  --max_restarts=N   How often each task is started again within the window;
                     0: the first failure ends all. Default: 3.
  --restart_window=SECONDS
                     How long a restart counts. Default: 3600.
  --min_workers=N    The run may go on with so few workers while others are
                     away. Default: all are needed.

Example:
  python -m trainer.launch --num_workers=2 -- \\
      --gin_file=experiments/digits.gin --model_dir=/tmp/digits

SIGTERM, SIGHUP and Ctrl-C end all tasks, SIGUSR1 is passed on to them. A task
that is stopped (SIGSTOP) for 20 s is ended and started again.

Exit codes: 0 done; 2 what was given is wrong; 75 a signal ended the tasks and
the state is saved, start the same command again; 128 and the signal's number
if a signal ended them otherwise; else that of the process that failed for
good: 75 if it asks to be started again, 128 and the number of its signal.
"""
