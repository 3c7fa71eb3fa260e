//! The tables of what limits disruption: budgets, times for maintenance, cool-downs.
//! They must not know how they are read.

use super::{BLOCK, HOUR, LONGEST, MINUTE, argument, duration, required};
use crate::config::schema::{Argument, ArgumentType, BlockType, Occurrence};

const REASONS: Argument = argument(
    "reasons",
    ArgumentType::SomeOf(&["empty", "underutilized", "drifted", "expired"]),
    "[]",
    "For which reasons; all if empty.",
);
const SCHEDULE: Argument = argument(
    "schedule",
    ArgumentType::Text,
    "",
    "When it holds, in place of `during`: five-field cron.",
);
const DURATION: Argument = argument(
    "duration",
    duration(MINUTE, 744 * HOUR),
    "",
    "How long it holds from each time of `schedule`.",
);
const TIMEZONE: Argument = argument(
    "timezone",
    ArgumentType::Text,
    "\"UTC\"",
    "Time zone of `schedule`, an IANA name.",
);

pub(super) static BUDGET: BlockType = BlockType {
    name: "budget",
    repeat: Occurrence::Many,
    about: "How many nodes may be leaving at once, or be let go within some time; every budget \
            holds. A pool without any has one of 10%.",
    arguments: &[
        argument(
            "nodes",
            ArgumentType::Allowance,
            "",
            "How many at once. One of `nodes` and `rate` is needed.",
        ),
        argument(
            "rate",
            ArgumentType::Rate,
            "",
            "How many within any minute, hour or day.",
        ),
        REASONS,
        argument(
            "during",
            ArgumentType::Reference("schedule"),
            "",
            "When it holds; always if missing.",
        ),
        SCHEDULE,
        DURATION,
        TIMEZONE,
    ],
    ..BLOCK
};

pub(super) static WINDOW: BlockType = BlockType {
    name: "window",
    repeat: Occurrence::Many,
    about: "A time for maintenance, or against it. Where any allows, nodes begin to leave only \
            within one that does; within none that denies.",
    arguments: &[
        required(
            "action",
            ArgumentType::OneOf(&["allow", "deny"]),
            "Whether nodes may begin to leave within it.",
        ),
        REASONS,
        argument(
            "during",
            ArgumentType::Reference("schedule"),
            "",
            "When it is.",
        ),
        SCHEDULE,
        DURATION,
        TIMEZONE,
    ],
    ..BLOCK
};

const fn cool_down(name: &'static str, about: &'static str) -> Argument {
    argument(name, duration(0, LONGEST), "\"0s\"", about)
}

static COOL_DOWN: BlockType = BlockType {
    name: "cool_down",
    about: "How long nothing is consolidated after something else was done in the cluster.",
    arguments: &[
        cool_down("after_launch", "After an instance was launched."),
        cool_down("after_end", "After an instance was ended."),
        cool_down("after_failure", "After a node was to leave and could not."),
    ],
    ..BLOCK
};

/// What stands in a cluster's block `disruption`.
pub(super) static CLUSTER_DISRUPTION: BlockType = BlockType {
    name: "disruption",
    about: "When its nodes are disrupted on purpose, whatever their pools say besides.",
    blocks: &[&BUDGET, &WINDOW, &COOL_DOWN],
    ..BLOCK
};
