//! The tables of the schema: every block and argument, flat and in order.
//! They must not know how they are read.

use crate::config::id_format::IdFormat;
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};

mod disruption;
mod cluster;
mod node_class;
mod pool;
mod overlay;
mod buffer;
mod scheduler;

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// Ten years: no setting is meant to last longer, and a typing error often is.
const LONGEST: i64 = 87_600 * HOUR;

const fn argument(
    name: &'static str,
    kind: ArgumentType,
    default: &'static str,
    about: &'static str,
) -> Argument {
    Argument {
        name,
        kind,
        default,
        required: false,
        about,
    }
}

const fn required(name: &'static str, kind: ArgumentType, about: &'static str) -> Argument {
    Argument {
        name,
        kind,
        default: "",
        required: true,
        about,
    }
}

/// A text of a form, without a default.
const fn form(name: &'static str, form: IdFormat, about: &'static str) -> Argument {
    argument(name, ArgumentType::Form(form), "", about)
}

const fn duration(min_ms: i64, max_ms: i64) -> ArgumentType {
    ArgumentType::Duration {
        min_ms,
        max_ms,
        never: false,
    }
}

const fn duration_or_never(min_ms: i64, max_ms: i64) -> ArgumentType {
    ArgumentType::Duration {
        min_ms,
        max_ms,
        never: true,
    }
}

const CLUSTERS: Argument = argument(
    "clusters",
    ArgumentType::Texts,
    "[\"*\"]",
    "Clusters it is for: names, or patterns with `*`.",
);

const BLOCK: BlockType = BlockType {
    name: "",
    label: None,
    repeat: Occurrence::Once,
    about: "",
    arguments: &[],
    blocks: &[],
    open: false,
};

/// What may stand in a file: the blocks, at the outermost level.
pub fn root() -> &'static BlockType {
    &ROOT
}

static ROOT: BlockType = BlockType {
    name: "file",
    blocks: &[
        &OUTRIGGER,
        &VARIABLE,
        &LOCALS,
        &TERRAFORM_OUTPUT,
        &cluster::CLUSTER,
        &node_class::NODE_CLASS,
        &pool::POOL,
        &pool::DEFAULTS,
        &overlay::OVERLAY,
        &buffer::BUFFER,
        &SCHEDULE,
        &scheduler::SCHEDULER,
        &FLEET,
        &TELEMETRY,
    ],
    ..BLOCK
};

static OUTRIGGER: BlockType = BlockType {
    name: "outrigger",
    about: "The installation as a whole.",
    arguments: &[
        argument(
            "installation",
            ArgumentType::Name,
            "",
            "Name of the installation, the same on all its hosts; only its instances are ever \
             touched. Required when a cluster is managed.",
        ),
        argument(
            "required_version",
            ArgumentType::Text,
            "",
            "Versions of Outrigger this configuration is for, such as `~> 0.1`.",
        ),
        argument(
            "dry_run",
            ArgumentType::Flag,
            "false",
            "Treats every cluster as `mode = \"observe\"`.",
        ),
    ],
    ..BLOCK
};

static VARIABLE: BlockType = BlockType {
    name: "variable",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "A value given from outside, `var.NAME`.",
    arguments: &[
        argument(
            "type",
            ArgumentType::Expression,
            "any",
            "`string`, `number`, `bool`, `any`, `list(T)`, `set(T)`, `map(T)`, `tuple([…])` or \
             `object({…})` with `optional(T, default)`.",
        ),
        argument(
            "default",
            ArgumentType::Expression,
            "",
            "Value where none is given; without one, one must be given.",
        ),
        argument(
            "description",
            ArgumentType::Text,
            "",
            "What the value is for.",
        ),
        argument(
            "sensitive",
            ArgumentType::Flag,
            "false",
            "Keeps the value, and all made from it, out of messages.",
        ),
        argument(
            "nullable",
            ArgumentType::Flag,
            "true",
            "Whether `null` is a value.",
        ),
    ],
    blocks: &[&VALIDATION],
    ..BLOCK
};

static VALIDATION: BlockType = BlockType {
    name: "validation",
    repeat: Occurrence::Many,
    about: "A rule that the variable's value must meet.",
    arguments: &[
        required(
            "condition",
            ArgumentType::Expression,
            "True where the value is fine.",
        ),
        required(
            "error_message",
            ArgumentType::Expression,
            "What to say where it is not.",
        ),
    ],
    ..BLOCK
};

static LOCALS: BlockType = BlockType {
    name: "locals",
    repeat: Occurrence::Many,
    about: "Named values, `local.NAME`, in any order.",
    open: true,
    ..BLOCK
};

static TERRAFORM_OUTPUT: BlockType = BlockType {
    name: "data \"terraform_output\"",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "Outputs of Terraform, `data.terraform_output.NAME.OUTPUT`, read at the start and at \
            each reload. Those that are sensitive are left out. They are in a file, in a state or \
            in a parameter.",
    arguments: &[
        argument(
            "file",
            ArgumentType::Path,
            "",
            "A file that `terraform output -json` has printed.",
        ),
        argument(
            "state",
            ArgumentType::Path,
            "",
            "A state of Terraform, in place of `file`.",
        ),
        form(
            "ssm_parameter",
            IdFormat::Parameter,
            "A parameter of AWS Systems Manager that holds `jsonencode({ OUTPUT = value })`, in \
             place of `file`.",
        ),
        form(
            "region",
            IdFormat::Filled,
            "Region of the parameter; by default that of its ARN, else the one the daemon is in.",
        ),
        argument(
            "refresh",
            duration_or_never(MINUTE, 24 * HOUR),
            "\"5m\"",
            "How often the parameter is looked at. Another value is a reload, of the files as they \
             were read last.",
        ),
        argument(
            "mock",
            ArgumentType::Expression,
            "",
            "Outputs that stand in for the parameter where nobody is asked, as in `validate`.",
        ),
    ],
    ..BLOCK
};

static SCHEDULE: BlockType = BlockType {
    name: "schedule",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "A recurring window of time, `schedule.NAME`.",
    arguments: &[
        required(
            "start",
            ArgumentType::Text,
            "When it opens: minute, hour, day of month, month, day of week; or `@daily` etc.",
        ),
        argument(
            "duration",
            duration(MINUTE, 744 * HOUR),
            "",
            "How long it is open.",
        ),
        argument(
            "end",
            ArgumentType::Text,
            "",
            "When it closes, in place of `duration`: cron as well.",
        ),
        argument(
            "timezone",
            ArgumentType::Text,
            "\"UTC\"",
            "Time zone, an IANA name.",
        ),
    ],
    ..BLOCK
};

static FLEET: BlockType = BlockType {
    name: "fleet",
    about: "What all clusters have in common.",
    arguments: &[
        argument(
            "limits",
            ArgumentType::Quantities,
            "{}",
            "Limits on all nodes of all clusters together, by resource; `nodes` is their number.",
        ),
        argument(
            "max_retired",
            ArgumentType::Allowance,
            "",
            "How many nodes of a cluster may be due to leave by a reload, being drifted by it, of \
             a pool that is gone, or more than `replicas`. Where it is more, they stay until the \
             reload is accepted. A reload is refused that takes out managed clusters with more of \
             all nodes. All may be if missing.",
        ),
    ],
    blocks: &[&disruption::BUDGET],
    ..BLOCK
};

static TELEMETRY: BlockType = BlockType {
    name: "telemetry",
    about: "What the daemon says about itself.",
    arguments: &[argument(
        "listen",
        ArgumentType::Address,
        "",
        "Address for /metrics, /livez and /readyz; if missing 127.0.0.1:9464, where that is free.",
    )],
    blocks: &[&LOG, &METRICS, &OTLP],
    ..BLOCK
};

static LOG: BlockType = BlockType {
    name: "log",
    about: "The log.",
    arguments: &[
        argument(
            "format",
            ArgumentType::OneOf(&["auto", "text", "json", "journald"]),
            "\"auto\"",
            "Its form. Where it is `journald`, each of its fields is one of the journal as well, \
             in capitals: `journalctl CLUSTER=prod POOL=gpu`. `auto` is `journald` where the \
             journal takes what is said on stderr, as that of a unit is, and `text` elsewhere.",
        ),
        argument(
            "level",
            ArgumentType::OneOf(&["error", "warn", "info", "debug", "trace"]),
            "\"info\"",
            "What is left out below.",
        ),
    ],
    ..BLOCK
};

static OTLP: BlockType = BlockType {
    name: "otlp",
    about: "Traces: one for each pass of a cluster's engine, with what was decided and every call \
            that carried it out. Only a build with the feature `otlp` sends any.",
    arguments: &[required(
        "endpoint",
        ArgumentType::Form(IdFormat::Endpoint),
        "Where a collector takes OTLP by gRPC.",
    )],
    ..BLOCK
};

static METRICS: BlockType = BlockType {
    name: "metrics",
    about: "The metrics.",
    arguments: &[
        argument(
            "names",
            ArgumentType::SomeOf(&["karpenter", "outrigger"]),
            "[\"karpenter\", \"outrigger\"]",
            "Under whose names they are published.",
        ),
        argument(
            "per_node",
            ArgumentType::Flag,
            "false",
            "Gives each node series of its own: about a dozen, as Karpenter's capacity dashboard \
             wants them.",
        ),
    ],
    ..BLOCK
};
