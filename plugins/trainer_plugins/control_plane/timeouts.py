"""The control plane's time-outs, all in seconds.

What a user may set is a parameter of the strategies: `start_seconds`,
`silence_seconds` and `timeout_seconds`. The constants here are their
defaults, and the limits that no one needs to change.
"""

# Both ends of a connection send a heartbeat this often.
HEARTBEAT_SECONDS = 1.0
# Longer than a healthy process ever blocks its other threads: tracing and
# compiling release Python's lock now and then.
SILENCE_SECONDS = 15.0
# After an operation has failed, a few missed heartbeats are evidence enough.
SUSPECT_SILENCE_SECONDS = 4.0
# A host that acknowledges nothing for this long has vanished. Its kernel
# acknowledges however busy its processes are, so it may be short.
UNACKNOWLEDGED_SECONDS = 8.0
# How long a failed operation waits for the news of who was lost: more than
# SUSPECT_SILENCE_SECONDS, and time for the coordinator to pass it on.
NEWS_SECONDS = 6.0

# A connection must have said within this time which task it is.
HELLO_SECONDS = 10.0
# A name server, or the coordinator's answer.
ANSWER_SECONDS = 5.0
CONNECT_RETRY_SECONDS = 0.1
# An earlier attempt that is just ending may still hold a port.
PORT_SECONDS = 10.0
# How often a task that is present looks for another coordinator.
SEARCH_SECONDS = 1.0
# After a mistake was found, the remaining tasks may join to be informed, too.
LINGER_SECONDS = 5.0
WARN_AFTER_SECONDS = 10.0
WARN_EVERY_SECONDS = 30.0
# An incomplete elastic cluster starts once no task has joined for this long.
SETTLE_SECONDS = 15.0
# How long a returned task waits for those of the run that ends for it.
RESTART_SECONDS = 60.0

# How long the main thread may take to fail on its own: that still closes
# callbacks and writes the exit report, which ending the process cannot.
LEAVE_SECONDS = 5.0
# For the others to read what was sent before a connection is closed.
GOODBYE_SECONDS = 1.0
