"""The exit codes of the command line. It imports no other module, because help shows them."""

SUCCESS, FAILURE, WRONG_INPUT, NO_RESOURCE, NO_DATA, BROKEN_PIPE = 0, 1, 2, 3, 4, 141
EXIT_CODES = {
    SUCCESS: "done",
    FAILURE: "a check failed, or a rehearsal; or a defect of resolvent, with a traceback",
    WRONG_INPUT: "an option, a file or the data are wrong, or a file is damaged",
    NO_RESOURCE: "no permission, no room, no memory, or another process of the run has ended",
    NO_DATA: "a file of a data set is missing",
    129: "ended by SIGHUP", 130: "interrupted by Ctrl-C", BROKEN_PIPE: "the reader of the output has ended",
    143: "ended by SIGTERM",
}
