//! Schema tables: every block and argument, in the order of the reference.
//! They must not depend on the code that reads them.

use crate::config::id_format::IdFormat;
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};

/// Describes an argument as `name: type`, then `=> required` or `=>` and its default as HCL. The
/// comment is its description. The name of a constant stands for the argument in it.
macro_rules! argument {
    ($constant:ident) => { $constant };
    (@ $kind:expr, ($default:expr, $required:expr), $name:ident $($about:tt)+) => {
        crate::config::schema::Argument {
            name: stringify!($name),
            kind: $kind,
            default: $default,
            required: $required,
            about: concat!($($about),+).trim_ascii_start(),
        }
    };
    ($(#[doc = $about:tt])+ $name:ident: $kind:expr) => {
        argument!(@ $kind, ("", false), $name $($about)+)
    };
    ($(#[doc = $about:tt])+ $name:ident: $kind:expr => required) => {
        argument!(@ $kind, ("", true), $name $($about)+)
    };
    ($(#[doc = $about:tt])+ $name:ident: $kind:expr => $default:tt) => {
        argument!(@ $kind, (stringify!($default), false), $name $($about)+)
    };
}

/// Lists arguments, each as `argument!` describes it.
macro_rules! arguments {
    ($($(#[doc = $about:tt])* $name:ident $(: $kind:expr $(=> $default:tt)?)?;)+) => {
        &[$(argument!($(#[doc = $about])* $name $(: $kind $(=> $default)?)?)),+]
    };
}

/// Defines constants of arguments that several blocks have, each as `argument!` describes it.
macro_rules! argument_constants {
    ($($(#[doc = $about:tt])+ $constant:ident = $name:ident: $kind:expr $(=> $default:tt)?;)+) => {
        $(const $constant: crate::config::schema::Argument =
            argument!($(#[doc = $about])+ $name: $kind $(=> $default)?);)+
    };
}

/// Defines blocks, each with its name, the placeholder of its label if it has one, how often it may
/// occur, its arguments, and the blocks in it. The comment is its description.
macro_rules! block_types {
    ($(
        $(#[doc = $about:tt])+
        $visibility:vis static $constant:ident = $name:literal $($label:literal)?, $repeat:ident,
        $arguments:expr $(, [$($block:expr),+ $(,)?])?;
    )+) => {
        $($visibility static $constant: crate::config::schema::BlockType =
            crate::config::schema::BlockType {
                name: $name,
                $(label: Some($label),)?
                repeat: crate::config::schema::Occurrence::$repeat,
                about: concat!($($about),+).trim_ascii_start(),
                arguments: $arguments,
                $(blocks: &[$($block),+],)?
                ..crate::config::schema::blocks::BLOCK
            };)+
    };
}

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

const fn duration_type(min_ms: i64, max_ms: i64) -> ArgumentType {
    ArgumentType::Duration { min_ms, max_ms, never: false }
}

const fn duration_or_never(min_ms: i64, max_ms: i64) -> ArgumentType {
    ArgumentType::Duration { min_ms, max_ms, never: true }
}

const CLUSTERS: Argument = argument! {
    /// Names of the clusters that it applies to; `*` matches any characters.
    clusters: ArgumentType::Texts => ["*"]
};

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
        &disruption::SWEEP,
        &scheduler::SCHEDULER,
        &FLEET,
        &TELEMETRY,
    ],
    ..BLOCK
};

block_types! {
    /// Settings of the installation.
    static OUTRIGGER = "outrigger", Once, arguments! {
        /// Name of the installation, the same on all its hosts. Outrigger only changes instances of
        /// its own installation. Required if a cluster is managed.
        installation: ArgumentType::Name;
        /// Version constraint for Outrigger, such as `~> 0.1`.
        required_version: ArgumentType::Text;
        /// Treats every cluster as `mode = "observe"`.
        dry_run: ArgumentType::Flag => false;
    };

    /// An input variable, `var.NAME`.
    static VARIABLE = "variable" "NAME", PerLabel, arguments! {
        /// Type: `string`, `number`, `bool`, `any`, `list(T)`, `set(T)`, `map(T)`, `tuple([…])` or
        /// `object({…})` with `optional(T, default)`.
        type: ArgumentType::Expression => any;
        /// Value to use if none is set. A variable without a default must be set.
        default: ArgumentType::Expression;
        /// Description of the variable.
        description: ArgumentType::Text;
        /// Hides the value, and all values derived from it, in messages.
        sensitive: ArgumentType::Flag => false;
        /// Accepts `null` as a value.
        nullable: ArgumentType::Flag => true;
    }, [&VALIDATION];

    /// A rule that the value of the variable must meet.
    static VALIDATION = "validation", Many, arguments! {
        /// Expression that is true for valid values.
        condition: ArgumentType::Expression => required;
        /// Message for invalid values.
        error_message: ArgumentType::Expression => required;
    };
}

static LOCALS: BlockType = BlockType {
    name: "locals",
    repeat: Occurrence::Many,
    about: "Named values, `local.NAME`, in any order.",
    open: true,
    ..BLOCK
};

block_types! {
    /// Terraform outputs, `data.terraform_output.NAME.OUTPUT`, read at startup and at each reload.
    /// Sensitive outputs are omitted. The source is a file, a state or an SSM parameter.
    static TERRAFORM_OUTPUT = "data \"terraform_output\"" "NAME", PerLabel, arguments! {
        /// File with the output of `terraform output -json`.
        file: ArgumentType::Path;
        /// Terraform state file, in place of `file`.
        state: ArgumentType::Path;
        /// Parameter of AWS Systems Manager that holds `jsonencode({ OUTPUT = value })`, in place
        /// of `file`.
        ssm_parameter: ArgumentType::Form(IdFormat::Parameter);
        /// Region of the parameter. Defaults to the region of its ARN, then to the region of the
        /// daemon.
        region: ArgumentType::Form(IdFormat::Filled);
        /// How often to read the parameter. A changed value causes a reload, with the files as last
        /// read.
        refresh: duration_or_never(MINUTE, 24 * HOUR) => "5m";
        /// Outputs to use in place of the parameter by commands that do not call AWS, such as
        /// `validate`.
        mock: ArgumentType::Expression;
    };

    /// A recurring time window, `schedule.NAME`.
    static SCHEDULE = "schedule" "NAME", PerLabel, arguments! {
        /// Start as cron: minute, hour, day of month, month, day of week; or `@daily` and similar.
        start: ArgumentType::Text => required;
        /// Length of the window.
        duration: duration_type(MINUTE, 744 * HOUR);
        /// End as cron, in place of `duration`.
        end: ArgumentType::Text;
        /// Time zone, as an IANA name.
        timezone: ArgumentType::Text => "UTC";
    };

    /// Settings for all clusters together.
    static FLEET = "fleet", Once, arguments! {
        /// Limits on all nodes of all clusters together, by resource; `nodes` is the number of
        /// nodes.
        limits: ArgumentType::Quantities => {};
        /// Maximum number of nodes of a cluster that a reload may disrupt because they drift, their
        /// pool is removed, or `replicas` is reduced. If a reload exceeds it, the nodes are kept
        /// until you accept the reload. A reload that removes managed clusters is refused if they
        /// have more than this share of all nodes. Unlimited if missing.
        max_disrupted_per_reload: ArgumentType::Allowance;
    }, [&disruption::BUDGET];

    /// Metrics, logs and traces of the daemon.
    static TELEMETRY = "telemetry", Once, arguments! {
        /// Address for /metrics, /livez and /readyz. Defaults to 127.0.0.1:9464, if that port is
        /// free.
        listen: ArgumentType::Address;
    }, [&LOG, &METRICS, &OTLP];

    /// Log output.
    static LOG = "log", Once, arguments! {
        /// Log format. `journald` also writes each log field as a journal field in capitals:
        /// `journalctl CLUSTER=prod POOL=gpu`. `auto` is `journald` if stderr is connected to the
        /// journal, as in a systemd unit, and `text` otherwise.
        format: ArgumentType::OneOf(&["auto", "text", "json", "journald"]) => "auto";
        /// Minimum level of log lines.
        level: ArgumentType::OneOf(&["error", "warn", "info", "debug", "trace"]) => "info";
    };

    /// Traces: one for each reconcile pass of a cluster, with its decisions and API calls. Requires
    /// a build with the feature `otlp`.
    static OTLP = "otlp", Once, arguments! {
        /// OTLP/gRPC endpoint of a collector.
        endpoint: ArgumentType::Form(IdFormat::Endpoint) => required;
    };

    /// Prometheus metrics.
    static METRICS = "metrics", Once, arguments! {
        /// Naming schemes under which metrics are published.
        names: ArgumentType::SomeOf(&["karpenter", "outrigger"]) => ["karpenter", "outrigger"];
        /// Publishes about a dozen series for each node, as Karpenter's capacity dashboard
        /// requires.
        per_node: ArgumentType::Flag => false;
    };
}
