//! Decoded blocks, argument by argument.

use std::collections::BTreeMap;
use std::rc::Rc;

use jiff::SignedDuration;
use serde_json::Value as Json;

use crate::config::convert::ParsedArgument;
use crate::config::diagnostic::ProblemCode;
use crate::config::report::{Reporter, SpannedDiagnostic, error_at};
use crate::config::source::Span;
use crate::config::syntax::{Expr, PathStep};
use crate::model::labels::Labels;
use crate::model::node_class::kubelet::{Reserved, Signal, Threshold};
use crate::model::overlay::PriceAdjustment;
use crate::model::pool::{BudgetNodes, Rate};

/// A decoded argument.
#[derive(Clone, Debug)]
pub(super) struct DecodedArgument {
    pub(super) value: ParsedArgument,
    pub(super) name_span: Span,
    pub(super) expr: Expr,
    /// True if the value depends on a sensitive value.
    pub(super) sensitive: bool,
}

/// A decoded block. Missing, null and invalid arguments are omitted.
#[derive(Clone, Debug)]
pub(super) struct DecodedBlock {
    pub(super) title: String,
    pub(super) header: Span,
    pub(super) label: Option<(String, Span)>,
    pub(super) arguments: BTreeMap<&'static str, DecodedArgument>,
    /// Arguments whose expressions are evaluated by the code of the block.
    pub(super) exprs: BTreeMap<&'static str, Expr>,
    /// Invalid arguments. They are not reported as missing.
    pub(super) faulty: Vec<&'static str>,
    pub(super) blocks: Vec<(&'static str, DecodedBlock)>,
    /// Collects the diagnostics of the block.
    pub(super) reporter: Rc<Reporter>,
}

impl SpannedDiagnostic {
    /// Reports this error as a diagnostic of the block.
    pub(super) fn report(self, section: &DecodedBlock) {
        section.reporter.add(self.within(&section.title));
    }
}

impl DecodedBlock {
    /// Reports an error of this block.
    pub(super) fn error(&self, code: ProblemCode, span: Span, detail: impl Into<String>) {
        error_at(code, span, detail).report(self);
    }

    pub(super) fn label(&self) -> &str {
        self.label.as_ref().map_or("", |(label, _)| label)
    }

    /// The span of the label, or of the block type if it has no label.
    pub(super) fn label_span(&self) -> Span {
        self.label.as_ref().map_or(self.header, |(_, span)| *span)
    }

    pub(super) fn get(&self, name: &str) -> Option<&DecodedArgument> {
        self.arguments.get(name)
    }

    /// Returns whether the argument is set, even to an invalid value.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.arguments.contains_key(name) || self.faulty.contains(&name)
    }

    /// Returns whether any of the arguments is set, even to an invalid value.
    pub(super) fn is_any_set(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.is_set(name))
    }

    /// The span of an argument's value, or of the block header.
    pub(super) fn value_span(&self, name: &str) -> Span {
        self.get(name).map_or(self.header, |read| read.expr.span)
    }

    /// The span of a part of an argument's value.
    pub(super) fn inner_span(&self, name: &str, step: PathStep) -> Span {
        self.get(name).map_or(self.header, |read| read.expr.inner_span(&[step]))
    }

    pub(super) fn expr(&self, name: &str) -> Option<&Expr> {
        self.exprs.get(name)
    }

    pub(super) fn blocks<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        let blocks = self.blocks.iter().filter(move |(kind, _)| *kind == name);
        blocks.map(|(_, section)| section)
    }

    pub(super) fn block(&self, name: &str) -> Option<&Self> {
        let (_, section) = self.blocks.iter().find(|(kind, _)| *kind == name)?;
        Some(section)
    }

    pub(super) fn owned_text(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// An integer that the schema limits to `u32`.
    pub(super) fn count(&self, name: &str) -> Option<u32> {
        u32::try_from(self.whole_number(name)?).ok()
    }

    /// An integer that the schema limits to `u8`.
    pub(super) fn small_count(&self, name: &str) -> Option<u8> {
        u8::try_from(self.whole_number(name)?).ok()
    }

    pub(super) fn duration(&self, name: &str) -> Option<SignedDuration> {
        self.duration_or_never(name).flatten()
    }
}

/// Defines methods that return the value of an argument of one type: `None` if the argument is
/// missing or has another type.
macro_rules! value_getters {
    ($(
        $(#[$about:meta])*
        $name:ident -> $type:ty, $variant:ident($value:ident) => $result:expr;
    )+) => {
        impl DecodedBlock {
            $($(#[$about])*
            pub(super) fn $name(&self, name: &str) -> $type {
                match self.get(name).map(|read| &read.value) {
                    Some(ParsedArgument::$variant($value)) => $result,
                    _ => Default::default(),
                }
            })+
        }
    };
}

value_getters! {
    text -> Option<&str>, Text(text) => Some(text);
    flag -> Option<bool>, Flag(flag) => Some(*flag);
    whole_number -> Option<i64>, Whole(whole) => Some(*whole);
    number -> Option<f64>, Number(number) => Some(*number);
    price_adjustment -> Option<PriceAdjustment>, PriceAdjustment(change) => Some(*change);
    /// A duration. An inner `None` is `never`.
    duration_or_never -> Option<Option<SignedDuration>>, Duration(duration) => Some(*duration);
    budget_nodes -> Option<BudgetNodes>, Allowance(allowance) => Some(*allowance);
    rate -> Option<Rate>, Rate(rate) => Some(*rate);
    texts -> Option<&[String]>, Texts(texts) => Some(texts);
    string_map -> Labels, Map(items) => items.iter().cloned().collect();
    quantities -> &[(String, i64)], Quantities(items) => items;
    reserved_resources -> BTreeMap<String, Reserved>, Reserved(items) => items.clone();
    eviction_thresholds -> BTreeMap<Signal, Threshold>, Thresholds(items) => items.clone();
    grace_periods -> BTreeMap<Signal, SignedDuration>, Periods(items) => items.clone();
    kubelet_fields -> BTreeMap<String, Json>, Fields(items) => items.clone();
    reference -> Option<&str>, Reference(name) => Some(name);
}
