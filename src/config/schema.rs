//! Types of the schema: blocks and arguments with their types and defaults. These types must not
//! depend on the effect of any argument.
//!
//! The decoder checks the configuration against these tables. The reference in
//! docs/CONFIGURATION.md is generated from them.

// Schema tables of all blocks.
pub mod blocks;

use crate::config::id_format::IdFormat;
use crate::model::pool::Rate;

/// How often a block may occur in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// Once.
    Once,
    /// Any number of times.
    Many,
    /// Once for each label.
    PerLabel,
}

/// Type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentType {
    /// Any string.
    Text,
    /// A name that is a valid value of a Kubernetes label.
    Name,
    /// The path of a file. A relative path starts at the configuration folder.
    Path,
    /// `host:port`.
    Address,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// An integer within these bounds.
    Whole(i64, i64),
    /// A number within these bounds.
    Number(i64, i64),
    /// Change of a price: a signed number of US dollars per hour, or a percentage.
    PriceAdjustment,
    /// A duration within these bounds in milliseconds, or `"never"`.
    Duration {
        /// The shortest duration.
        min_ms: i64,
        /// The longest duration.
        max_ms: i64,
        /// Accepts `"never"`.
        never: bool,
    },
    /// A string of this format.
    Form(IdFormat),
    /// A Kubernetes quantity of bytes within these bounds.
    Size(i64, i64),
    /// A count, or a percentage of nodes.
    Allowance,
    /// A number of nodes within a period.
    Rate,
    /// A list of strings.
    Texts,
    /// A list of some of these strings.
    SomeOf(&'static [&'static str]),
    /// Tags that a launch creates.
    Tags,
    /// Tags that a resource must have to be selected.
    Searched,
    /// A map from label keys to label values.
    Labels,
    /// A map from annotation keys to strings.
    Annotations,
    /// A map from resource names to quantities.
    Quantities,
    /// A map from resources that a kubelet can reserve to quantities.
    Reserved,
    /// A map from signals to thresholds.
    Thresholds,
    /// A map from signals to durations.
    Periods,
    /// A map from fields of `KubeletConfiguration` to their values.
    KubeletFields,
    /// A reference to a block of this type.
    Reference(&'static str),
    /// An expression that is evaluated by the code of the block.
    Expression,
}

/// An argument.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: ArgumentType,
    /// Default as HCL. Empty if there is none.
    pub default: &'static str,
    /// Whether the argument is required.
    pub required: bool,
    /// Description.
    pub about: &'static str,
}

/// A type of block.
#[derive(Debug)]
pub struct BlockType {
    /// Name.
    pub name: &'static str,
    /// Placeholder of its label, in capitals. `None` if it has no label.
    pub label: Option<&'static str>,
    /// How often the block may occur in its parent.
    pub repeat: Occurrence,
    /// Description.
    pub about: &'static str,
    /// Arguments.
    pub arguments: &'static [Argument],
    /// Nested blocks.
    pub blocks: &'static [&'static BlockType],
    /// Accepts arguments of any name.
    pub open: bool,
}

impl BlockType {
    /// Returns the argument with this name.
    pub fn argument(&self, name: &str) -> Option<&'static Argument> {
        self.arguments.iter().find(|argument| argument.name == name)
    }

    /// Returns the nested block with this name.
    pub fn block(&self, name: &str) -> Option<&'static BlockType> {
        self.blocks.iter().find(|block| block.name == name).copied()
    }
}

impl ArgumentType {
    /// Returns a phrase that completes "must be …" in a diagnostic.
    pub fn expected_value(&self) -> String {
        match self {
            Self::Text => "a string".to_owned(),
            Self::Name => "a name".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Address => "an address such as \"127.0.0.1:9464\"".to_owned(),
            Self::OneOf(names) => alternatives(names),
            Self::Flag => "true or false".to_owned(),
            Self::Whole(min, i64::MAX) => format!("an integer of at least {min}"),
            Self::Whole(min, max) => format!("an integer from {min} to {max}"),
            Self::Number(min, max) => format!("a number from {min} to {max}"),
            Self::PriceAdjustment => "a price adjustment such as \"-28%\" or \"+0.1\"".to_owned(),
            Self::Duration { never: false, .. } => "a duration such as \"90s\"".to_owned(),
            Self::Duration { never: true, .. } => {
                "a duration such as \"90s\", or \"never\"".to_owned()
            }
            Self::Form(form) => form.expected_form().to_owned(),
            Self::Size(min, max) => {
                format!("a size from {} to {}", size_text(*min), size_text(*max))
            }
            Self::Allowance => "a count such as 3 or a percentage such as \"10%\"".to_owned(),
            Self::Rate => format!(
                "a rate such as \"20/h\": 1 to {} a minute (m), hour (h) or day (d)",
                Rate::NODES_MAX
            ),
            Self::Texts => "a list of strings".to_owned(),
            Self::SomeOf(names) => format!("a list of {}", alternatives(names)),
            Self::Tags | Self::Searched => "a map of strings".to_owned(),
            Self::Labels => "a map of labels".to_owned(),
            Self::Annotations => "a map of annotations".to_owned(),
            Self::Quantities | Self::Reserved => "a map of quantities".to_owned(),
            Self::Thresholds => "a map of quantities and percentages".to_owned(),
            Self::Periods => "a map of durations".to_owned(),
            Self::KubeletFields => "a map of fields".to_owned(),
            Self::Reference(kind) => format!("a reference such as {kind}.NAME"),
            Self::Expression => "an expression".to_owned(),
        }
    }

    /// Returns type, unit and range for the reference table.
    pub fn describe(&self) -> String {
        match self {
            Self::Path => "path".to_owned(),
            Self::Address => "`host:port`".to_owned(),
            Self::Flag => "bool".to_owned(),
            Self::Text => "string".to_owned(),
            Self::Name => "name".to_owned(),
            Self::OneOf(names) => code_list(names, " \\| "),
            Self::SomeOf(names) => format!("list of {}", code_list(names, ", ")),
            Self::Whole(min, i64::MAX) => format!("integer, from {min}"),
            Self::Whole(min, max) => format!("integer, {min} to {max}"),
            Self::Number(min, max) => format!("number, {min} to {max}"),
            Self::PriceAdjustment => "price adjustment".to_owned(),
            Self::Duration { min_ms, max_ms, never } => {
                let range =
                    format!("duration, {} to {}", duration_text(*min_ms), duration_text(*max_ms));
                if *never { format!("{range}, or `never`") } else { range }
            }
            Self::Form(form) => form.describe().to_owned(),
            Self::Size(min, max) => format!("quantity, {} to {}", size_text(*min), size_text(*max)),
            Self::Allowance => "count, or percentage 0 to 100".to_owned(),
            Self::Rate => format!("count, 1 to {}, with `/m`, `/h` or `/d`", Rate::NODES_MAX),
            Self::Texts => "list of strings".to_owned(),
            Self::Tags | Self::Searched => "map of strings".to_owned(),
            Self::Labels => "map of labels".to_owned(),
            Self::Annotations => "map of annotations".to_owned(),
            Self::Quantities | Self::Reserved => "map of quantities".to_owned(),
            Self::Thresholds => "map from signals to quantities or percentages".to_owned(),
            Self::Periods => "map from signals to durations".to_owned(),
            Self::KubeletFields => "map of fields".to_owned(),
            Self::Reference(kind) => format!("reference, `{kind}.NAME`"),
            Self::Expression => "expression".to_owned(),
        }
    }
}

fn code_list(names: &[&str], between: &str) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(between)
}

/// Formats a size in the largest unit that divides it.
fn size_text(bytes: i64) -> String {
    const UNITS: [(i64, &str); 2] = [(1_000_000_000_000, "T"), (1_000_000_000, "G")];
    let unit = UNITS.iter().find(|(unit, _)| bytes % unit == 0);
    unit.map_or(bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// Formats a duration as in HCL, in the largest unit that divides it.
pub fn duration_text(ms: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(3_600_000, "h"), (60_000, "m"), (1000, "s")];
    UNITS.iter().find(|(unit, _)| ms % unit == 0 && ms != 0).map_or_else(
        || {
            if ms == 0 { "0s".to_owned() } else { format!("{ms}ms") }
        },
        |(unit, name)| format!("{}{name}", ms / unit),
    )
}

/// The quoted names, joined with commas and `or`.
fn alternatives(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
