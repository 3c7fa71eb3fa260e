//! Schema tables: every block and argument, in the order of the reference.
//! They must not depend on the code that reads them.

use crate::config::id_format::IdFormat;
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};

// Budgets, maintenance windows, cooldowns.
mod disruption;
// `cluster` block.
mod cluster;
// `node_class` block.
mod node_class;
// `pool` and `defaults` blocks.
mod pool;
// `overlay` block.
mod overlay;
// `buffer` block.
mod buffer;
// `scheduler` block.
mod scheduler;

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// Ten years. A longer duration is most likely a typing error.
const LONGEST: i64 = 87_600 * HOUR;

/// Returns an optional argument without a default.
const fn argument(name: &'static str, kind: ArgumentType) -> Argument {
    Argument { name, kind, default: "", required: false, about: "" }
}

const fn required_argument(name: &'static str, kind: ArgumentType) -> Argument {
    Argument { required: true, ..argument(name, kind) }
}

/// Returns a string argument of a format, without a default.
const fn format_argument(name: &'static str, form: IdFormat) -> Argument {
    argument(name, ArgumentType::Form(form))
}

impl Argument {
    const fn default_value(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    const fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }
}

const fn duration_type(min_ms: i64, max_ms: i64) -> ArgumentType {
    ArgumentType::Duration { min_ms, max_ms, never: false }
}

const fn duration_or_never(min_ms: i64, max_ms: i64) -> ArgumentType {
    ArgumentType::Duration { min_ms, max_ms, never: true }
}

const CLUSTERS: Argument = argument("clusters", ArgumentType::Texts)
    .default_value("[\"*\"]")
    .about("Names of the clusters that it applies to; `*` matches any characters.");

const BLOCK: BlockType = BlockType {
    name: "",
    label: None,
    repeat: Occurrence::Once,
    about: "",
    arguments: &[],
    blocks: &[],
    open: false,
};

/// Returns the schema of a file: the blocks at the top level.
pub fn root_block() -> &'static BlockType {
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
    about: "Settings of the installation.",
    arguments: &[
        argument("installation", ArgumentType::Name).about(
            "Name of the installation, the same on all its hosts. Outrigger only changes \
             instances of its own installation. Required if a cluster is managed.",
        ),
        argument("required_version", ArgumentType::Text)
            .about("Version constraint for Outrigger, such as `~> 0.1`."),
        argument("dry_run", ArgumentType::Flag)
            .default_value("false")
            .about("Treats every cluster as `mode = \"observe\"`."),
    ],
    ..BLOCK
};

static VARIABLE: BlockType = BlockType {
    name: "variable",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "An input variable, `var.NAME`.",
    arguments: &[
        argument("type", ArgumentType::Expression).default_value("any").about(
            "Type: `string`, `number`, `bool`, `any`, `list(T)`, `set(T)`, `map(T)`, \
                 `tuple([…])` or `object({…})` with `optional(T, default)`.",
        ),
        argument("default", ArgumentType::Expression)
            .about("Value to use if none is set. A variable without a default must be set."),
        argument("description", ArgumentType::Text).about("Description of the variable."),
        argument("sensitive", ArgumentType::Flag)
            .default_value("false")
            .about("Hides the value, and all values derived from it, in messages."),
        argument("nullable", ArgumentType::Flag)
            .default_value("true")
            .about("Accepts `null` as a value."),
    ],
    blocks: &[&VALIDATION],
    ..BLOCK
};

static VALIDATION: BlockType = BlockType {
    name: "validation",
    repeat: Occurrence::Many,
    about: "A rule that the value of the variable must meet.",
    arguments: &[
        required_argument("condition", ArgumentType::Expression)
            .about("Expression that is true for valid values."),
        required_argument("error_message", ArgumentType::Expression)
            .about("Message for invalid values."),
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
    about: "Terraform outputs, `data.terraform_output.NAME.OUTPUT`, read at startup and at each \
            reload. Sensitive outputs are omitted. The source is a file, a state or an SSM \
            parameter.",
    arguments: &[
        argument("file", ArgumentType::Path)
            .about("File with the output of `terraform output -json`."),
        argument("state", ArgumentType::Path).about("Terraform state file, in place of `file`."),
        format_argument("ssm_parameter", IdFormat::Parameter).about(
            "Parameter of AWS Systems Manager that holds `jsonencode({ OUTPUT = value })`, in \
             place of `file`.",
        ),
        format_argument("region", IdFormat::Filled).about(
            "Region of the parameter. Defaults to the region of its ARN, then to the region of \
             the daemon.",
        ),
        argument("refresh", duration_or_never(MINUTE, 24 * HOUR)).default_value("\"5m\"").about(
            "How often to read the parameter. A changed value causes a reload, with the files \
                 as last read.",
        ),
        argument("mock", ArgumentType::Expression).about(
            "Outputs to use in place of the parameter by commands that do not call AWS, such as \
             `validate`.",
        ),
    ],
    ..BLOCK
};

static SCHEDULE: BlockType = BlockType {
    name: "schedule",
    label: Some("NAME"),
    repeat: Occurrence::PerLabel,
    about: "A recurring time window, `schedule.NAME`.",
    arguments: &[
        required_argument("start", ArgumentType::Text).about(
            "Start as cron: minute, hour, day of month, month, day of week; or `@daily` and \
             similar.",
        ),
        argument("duration", duration_type(MINUTE, 744 * HOUR)).about("Length of the window."),
        argument("end", ArgumentType::Text).about("End as cron, in place of `duration`."),
        argument("timezone", ArgumentType::Text)
            .default_value("\"UTC\"")
            .about("Time zone, as an IANA name."),
    ],
    ..BLOCK
};

static FLEET: BlockType = BlockType {
    name: "fleet",
    about: "Settings for all clusters together.",
    arguments: &[
        argument("limits", ArgumentType::Quantities).default_value("{}").about(
            "Limits on all nodes of all clusters together, by resource; `nodes` is the number \
                 of nodes.",
        ),
        argument("max_disrupted_per_reload", ArgumentType::Allowance).about(
            "Maximum number of nodes of a cluster that a reload may disrupt because they drift, \
             their pool is removed, or `replicas` is reduced. If a reload exceeds it, the nodes \
             are kept until you accept the reload. A reload that removes managed clusters is \
             refused if they have more than this share of all nodes. Unlimited if missing.",
        ),
    ],
    blocks: &[&disruption::BUDGET],
    ..BLOCK
};

static TELEMETRY: BlockType = BlockType {
    name: "telemetry",
    about: "Metrics, logs and traces of the daemon.",
    arguments: &[argument("listen", ArgumentType::Address).about(
        "Address for /metrics, /livez and /readyz. Defaults to 127.0.0.1:9464, if that port is \
         free.",
    )],
    blocks: &[&LOG, &METRICS, &OTLP],
    ..BLOCK
};

static LOG: BlockType = BlockType {
    name: "log",
    about: "Log output.",
    arguments: &[
        argument("format", ArgumentType::OneOf(&["auto", "text", "json", "journald"]))
            .default_value("\"auto\"")
            .about(
                "Log format. `journald` also writes each log field as a journal field in capitals: \
             `journalctl CLUSTER=prod POOL=gpu`. `auto` is `journald` if stderr is connected to \
             the journal, as in a systemd unit, and `text` otherwise.",
            ),
        argument("level", ArgumentType::OneOf(&["error", "warn", "info", "debug", "trace"]))
            .default_value("\"info\"")
            .about("Minimum level of log lines."),
    ],
    ..BLOCK
};

static OTLP: BlockType = BlockType {
    name: "otlp",
    about: "Traces: one for each reconcile pass of a cluster, with its decisions and API calls. \
            Requires a build with the feature `otlp`.",
    arguments: &[required_argument("endpoint", ArgumentType::Form(IdFormat::Endpoint))
        .about("OTLP/gRPC endpoint of a collector.")],
    ..BLOCK
};

static METRICS: BlockType = BlockType {
    name: "metrics",
    about: "Prometheus metrics.",
    arguments: &[
        argument("names", ArgumentType::SomeOf(&["karpenter", "outrigger"]))
            .default_value("[\"karpenter\", \"outrigger\"]")
            .about("Naming schemes under which metrics are published."),
        argument("per_node", ArgumentType::Flag).default_value("false").about(
            "Publishes about a dozen series for each node, as Karpenter's capacity dashboard \
                 requires.",
        ),
    ],
    ..BLOCK
};
