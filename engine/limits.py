"""Every limit of the engine in one place, with its reason. Units stand last in names.

Lower layers do not import this module: systems get what they need as the recorded ``Policy`` input,
persistence gets it as arguments. Relations between limits are asserted at import.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- what enters -------------------------------------------------------------------------------
TASK_BYTES_MAX: Final = 1 * MIB
"""A task is carried in meta.json, which every listing may parse; larger inputs belong in files."""
METADATA_BYTES_MAX: Final = 64 * KIB
"""Labels, not documents: all keys and values of one run's metadata together."""
RUN_ID_BYTES_MAX: Final = 128
"""Names a folder; leaves room under the usual 255 byte limit of a file name for our suffixes."""
STEP_INPUTS_MIN: Final = 16
"""What a step takes at least when it is paced: below it the fixed cost of a step prevails."""
STEP_HOLD_MS: Final = 5
"""How long a step should hold the host's loop; the promise is 20 ms at the 99th percentile."""
KEY_BYTES_MAX: Final = 512
"""An idempotency key is an index entry; longer ones belong through a digest."""
LABEL_BYTES_MAX: Final = 2 * KIB
"""Who did something and why: a sentence, which every listing and event carries."""
QUESTION_BYTES_MAX: Final = 64 * KIB
"""What a person is asked: a page or two; more belongs in the document beside it."""
CHOICES_MAX: Final = 100
"""Options that a person can still look through."""
CHOICE_CHARS_MAX: Final = 512
"""An option is shown on a line or two."""
DOCUMENT_BYTES_MAX: Final = 1 * MIB
"""A document that a person reviews or edits, before and after."""
REASON_BYTES_MAX: Final = 16 * KIB
"""Why a person says no: stands in one result with the no, and is no document."""
MESSAGE_BYTES_MAX: Final = 1 * MIB
"""A message enters the prompt; larger material belongs in a file."""
REGION_INPUT_BYTES_MAX: Final = 4 * MIB
"""What a caller may seed one region with: a prompt of a million tokens."""
STEP_INPUTS_MAX: Final = 256
"""Inputs of one step: keeps one step well under the 20 ms a host's loop may be held."""
TEXT_INLINE_BYTES_MAX: Final = 1024
"""Texts above this are stored once by digest; below, a row of its own costs more than it saves."""

TEXT_CACHE_BYTES_MAX: Final = 64 * MIB
"""Long texts kept in memory beside the disk, so that a prompt does not read it again each turn."""
INBOX_INPUTS_MAX: Final = 65_536
"""Inputs that wait for a step; callers beyond it wait before they post."""
LANE_WORKERS_MAX: Final = 4_096
"""Concurrent calls of one lane: above it they queue. A parked worker costs about 3 KB."""
THREADS_MAX: Final = 64
"""Threads for plain functions: hanging tools may hold so many before others queue."""
EVENT_QUEUE_MAX: Final = 16_384
"""Events a slow subscriber may lag behind before it reads the rest from the journal."""
CLOSE_GRACE_MS: Final = 5_000
"""How long a closing host waits for outcomes in flight before it aborts them."""

AGENTS_KEPT_MAX: Final = 256
"""Checked blueprints kept, so that a fleet of one agent reads and checks it once."""
CANCEL_GRACE_MS: Final = 3_000
"""How long a cancelled call may shield itself before its run goes on without it; longer than a
tool's process group needs to end."""
SEED_FILES_MAX: Final = 200
"""Files that one region's seed may read."""
SEED_FILE_BYTES_MAX: Final = 256 * KIB
"""What of one seed file is read; a region would not hold more."""
ROUTING_REPLY_BYTES_MAX: Final = 8 * KIB
"""The step reads a routing reply itself, so it travels whole; the call is capped at 256 tokens."""
ERROR_TEXT_BYTES_MAX: Final = 2 * KIB
"""What of a provider's error message is kept."""

FAN_OUT_ITEMS_MAX: Final = 10_000
"""Items of one split that are read at all; what a tree allows is in the policy."""
ITEM_ID_CHARS_MAX: Final = 64
"""An item's id names its worker in lists and results."""
AGENTS_SEARCHED_MAX: Final = 1_000
"""Folders of installed agents that a search by words looks into."""

# --- durability --------------------------------------------------------------------------------
NOT_DURABLE_STEPS_MAX: Final = 1024
"""Steps that may run ahead of the disk (architecture 6): bounds memory and what a crash forgets."""
NOT_DURABLE_BYTES_MAX: Final = 64 * MIB
"""The same in bytes."""
CUT_BYTES: Final = 16 * MIB
"""Changes since the last cut that start a new one: bounds what a load has to apply."""
CUT_INTERVAL_MS: Final = 60_000
"""At most this long between cuts while anything changes."""
HISTORY_STEPS_MIN: Final = 1_000
"""Fewest steps of history that a home can be told to keep: a reader of events that lags reads
them from there."""
HISTORY_FOLD_STEPS: Final = 256
"""Old steps that one transaction folds, so that commits come between: some 10 ms."""
MIRROR_INTERVAL_MS: Final = 1_000
"""How far a busy run's files lag at most, and so how often they are rewritten at most."""
MIRROR_RUNS_S_MAX: Final = 100
"""Busy runs whose files are rewritten in a second. Beyond it intervals grow;
what is urgent (a status, a reason to wait, an ending) is never put off."""
MIRROR_RUNS_COMMIT: Final = 64
"""Runs of a crowd whose files are projected with one commit: some 15 ms, for which acknowledgements
wait. The others' follow with the next commits, at once."""
HEARTBEAT_INTERVAL_MS: Final = 30_000
"""The persistence heartbeat of the run files (seed 000, ``touch``)."""
HEARTBEAT_BUCKETS: Final = 30
"""One bucket of ordinals a second, so that a beat never holds the loop."""
SLEEP_GAP_MS: Final = 5_000
"""A gap longer than this beyond what the loop waited for is a sleeping machine, not time used."""

CHECK_RUNS: Final = 64
"""Runs whose invariants are checked between two looks at the loop: about 1 ms."""
FREEZE_RUNS: Final = 10_000
"""Runs that come in between two freezes of the heap (architecture 6)."""
LOAD_SLICE_MS: Final = 5
"""How long a load works before it lets the host's loop run."""
SETTLE_RUNS_MAX: Final = 64
"""Runs that one Settle input drives again: keeps its step short."""
STORAGE_RETRY_MS: Final = 1_000
"""Between two tries of a commit that found no space (architecture 6)."""
THREAD_LOOK_MS: Final = 10
"""How often the loop looks whether plain tools need another thread."""

# --- tools -------------------------------------------------------------------------------------
TOOL_DEADLINE_MS: Final = 600_000
"""Default deadline of one tool call."""
TOOL_RESULT_INLINE_BYTES_MAX: Final = 64 * KIB
"""What of a tool's result goes to the model: head, tail and a pointer to the spill file."""
TOOL_SPILL_BYTES_MAX: Final = 64 * MIB
"""What of a tool's result is kept in its spill file; beyond it the process group is killed."""
TOOL_GROUP_KILL_MS: Final = 2_000
"""A tool's process group is gone this long after its host died."""
READ_SCAN_BYTES_MAX: Final = 256 * MIB
"""What one read_file looks through for the lines asked for: under a second from memory. A sparse
file may claim far more, and would hold a thread for as long as that takes."""
SECRET_CHARS_MIN: Final = 8
"""Shorter values are not hidden: they are words and numbers of everyday texts."""
SECRET_ENV_CHARS_MIN: Final = 12
"""The same for what the environment holds under the name of a credential but nobody vouched for."""
CALLBACK_TIMEOUT_MS: Final = 10_000
"""One attempt at a callback, from looking its name up to the status line (leviath-run-files 7)."""
CALLBACK_LANE_WORKERS_MAX: Final = 32
"""Callbacks outside at once: a receiver that hangs keeps no model call waiting."""
CALLBACK_URL_CHARS_MAX: Final = 2_048
"""Longer addresses are refused by many receivers' own servers."""
CALLBACK_HEAD_BYTES_MAX: Final = 64 * KIB
"""What is read of an answer's head; its body is not read at all."""
CALLBACK_ANSWER_BYTES_MAX: Final = 256
"""What is kept of a receiver's status line, or of why there is none."""
SECRETS_LEARNED_MAX: Final = 64
"""Secrets of callbacks that are looked for, the newest: each costs a search of every text."""
REPLY_CALLS_MAX: Final = 256
"""Tool calls of one reply: merging their results takes time by the square of their number."""
MODIFIED_PATHS_MAX: Final = 1_000
"""Paths that one tool call may report as modified; the count of calls is what decides."""
FINAL_OUTPUT_BYTES_MAX: Final = 256 * KIB
"""The final output (leviath-run-files section 1), cut at a code point."""
MODIFIED_FILES_MAX: Final = 200
"""Distinct paths kept in RunFlags.modified_files; the count goes on."""

CASSETTE_BYTES_MAX: Final = 256 * MIB
"""A cassette is read whole; more belongs in several."""
NEAREST_COMPARED_MAX: Final = 8
"""Recordings that a miss is compared with line by line, which takes time by the square of lines."""
NEAREST_SHOWN_LINES_MAX: Final = 40
"""Lines of the difference that a miss shows."""

# --- blueprints --------------------------------------------------------------------------------
BLUEPRINT_BYTES_MAX: Final = 256 * KIB
"""A manifest is read whole and parsed at spawn; longer texts belong in files that seeds name."""
BLUEPRINT_STAGES_MAX: Final = 256
"""A graph that a person can still read; also the most edges of a stage."""
BLUEPRINT_REGIONS_MAX: Final = 256
"""Regions of one layout: each is rendered in every prompt of the stage."""
BLUEPRINT_FAULTS_MAX: Final = 100
"""Faults listed in one error; the rest are counted."""
BLUEPRINT_KEY_PARTS_MAX: Final = 64
"""Parts of a dotted key; the parser's time grows with their square."""
BLUEPRINT_JSON_DEPTH_MAX: Final = 32
"""Nesting of open tables (model parameters, schemas): well under the interpreter's own limit."""
BLUEPRINT_COUNT_MAX: Final = 1_000_000
"""Greatest cap a blueprint may set on iterations, visits, attempts and items."""
BLUEPRINT_TOKENS_MAX: Final = 100_000_000
"""Greatest size in tokens a blueprint may name: far above any window, far below overflow."""
BLUEPRINT_CHILD_DEPTH_MAX: Final = 64
"""Greatest depth of a tree of runs that a blueprint may ask for."""
BLUEPRINT_REQUEST_TIMEOUT_MS_MAX: Final = 86_400_000
"""A model call, all attempts together, ends within a day."""
BLUEPRINT_STUCK_MINUTES_MAX: Final = 525_600
"""A stage that may take longer than a year is not being watched at all."""

assert TEXT_INLINE_BYTES_MAX < TOOL_RESULT_INLINE_BYTES_MAX <= TOOL_SPILL_BYTES_MAX
assert HEARTBEAT_INTERVAL_MS == HEARTBEAT_BUCKETS * 1_000
assert CUT_BYTES < NOT_DURABLE_BYTES_MAX
assert TOOL_GROUP_KILL_MS < CANCEL_GRACE_MS < CLOSE_GRACE_MS
