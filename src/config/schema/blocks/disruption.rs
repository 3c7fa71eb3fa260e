//! Schema tables of disruption limits: budgets, maintenance windows, cool-downs.
//! They must not depend on the code that reads them.

use super::{BLOCK, HOUR, LONGEST, MINUTE, argument, duration_type, required_argument};
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};

const REASONS: Argument =
    argument("reasons", ArgumentType::SomeOf(&["empty", "underutilized", "drifted", "expired"]))
        .default_value("[]")
        .about("Disruption reasons that it applies to; all if empty.");
const SCHEDULE: Argument = argument("schedule", ArgumentType::Text)
    .about("Start times as five-field cron, in place of `during`.");
const DURATION: Argument = argument("duration", duration_type(MINUTE, 744 * HOUR))
    .about("How long it applies from each start time of `schedule`.");
const TIMEZONE: Argument = argument("timezone", ArgumentType::Text)
    .default_value("\"UTC\"")
    .about("Time zone of `schedule`, as an IANA name.");

pub(super) static BUDGET: BlockType = BlockType {
    name: "budget",
    repeat: Occurrence::Many,
    about: "Limits how many nodes are disrupted at the same time or within a period. All budgets \
            apply. A pool without a budget has a budget of 10%.",
    arguments: &[
        argument("nodes", ArgumentType::Allowance).about(
            "Maximum number of nodes that are disrupted at the same time. Set `nodes`, `rate` or \
             both.",
        ),
        argument("rate", ArgumentType::Rate)
            .about("Maximum number of nodes that are disrupted within any minute, hour or day."),
        REASONS,
        argument("during", ArgumentType::Reference("schedule"))
            .about("When the budget applies; always if missing."),
        SCHEDULE,
        DURATION,
        TIMEZONE,
    ],
    ..BLOCK
};

pub(super) static WINDOW: BlockType = BlockType {
    name: "window",
    repeat: Occurrence::Many,
    about: "A maintenance window. If a window has `allow`, disruption starts only within such a \
            window. Disruption never starts within a window that has `deny`.",
    arguments: &[
        required_argument("action", ArgumentType::OneOf(&["allow", "deny"]))
            .about("Allows or denies the start of disruption within the window."),
        REASONS,
        argument("during", ArgumentType::Reference("schedule")).about("When the window is open."),
        SCHEDULE,
        DURATION,
        TIMEZONE,
    ],
    ..BLOCK
};

const fn cool_down(name: &'static str, about: &'static str) -> Argument {
    argument(name, duration_type(0, LONGEST)).default_value("\"0s\"").about(about)
}

static COOL_DOWN: BlockType = BlockType {
    name: "cool_down",
    about: "How long consolidation pauses after other actions in the cluster.",
    arguments: &[
        cool_down("after_launch", "Pause after an instance is launched."),
        cool_down("after_end", "Pause after an instance is terminated."),
        cool_down("after_failure", "Pause after a node could not be disrupted."),
    ],
    ..BLOCK
};

/// The `disruption` block of a cluster.
pub(super) static CLUSTER_DISRUPTION: BlockType = BlockType {
    name: "disruption",
    about: "Limits on voluntary disruption in the cluster, in addition to those of its pools.",
    blocks: &[&BUDGET, &WINDOW, &COOL_DOWN],
    ..BLOCK
};
