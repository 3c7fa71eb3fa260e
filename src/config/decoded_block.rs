//! Decoded blocks, argument by argument.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde_json::Value as Json;

use crate::config::convert::ParsedArgument;
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
    /// Arguments that the block evaluates itself.
    pub(super) exprs: BTreeMap<&'static str, Expr>,
    /// Invalid arguments. They are not reported as missing.
    pub(super) faulty: Vec<&'static str>,
    pub(super) blocks: Vec<(&'static str, DecodedBlock)>,
}

impl DecodedBlock {
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

    /// Reports if the argument is set, even to an invalid value.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.arguments.contains_key(name) || self.faulty.contains(&name)
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

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            ParsedArgument::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn owned_text(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)?.value {
            ParsedArgument::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    pub(super) fn whole_number(&self, name: &str) -> Option<i64> {
        match self.get(name)?.value {
            ParsedArgument::Whole(whole) => Some(whole),
            _ => None,
        }
    }

    /// An integer that the schema limits to `u32`.
    pub(super) fn count(&self, name: &str) -> Option<u32> {
        u32::try_from(self.whole_number(name)?).ok()
    }

    /// An integer that the schema limits to `u8`.
    pub(super) fn small_count(&self, name: &str) -> Option<u8> {
        u8::try_from(self.whole_number(name)?).ok()
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        match self.get(name)?.value {
            ParsedArgument::Number(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn price_adjustment(&self, name: &str) -> Option<PriceAdjustment> {
        match self.get(name)?.value {
            ParsedArgument::PriceAdjustment(adjustment) => Some(adjustment),
            _ => None,
        }
    }

    /// A duration. An inner `None` is `never`.
    pub(super) fn duration_or_never(&self, name: &str) -> Option<Option<SignedDuration>> {
        match self.get(name)?.value {
            ParsedArgument::Duration(duration) => Some(duration),
            _ => None,
        }
    }

    pub(super) fn duration(&self, name: &str) -> Option<SignedDuration> {
        self.duration_or_never(name).flatten()
    }

    pub(super) fn budget_nodes(&self, name: &str) -> Option<BudgetNodes> {
        match self.get(name)?.value {
            ParsedArgument::Allowance(allowance) => Some(allowance),
            _ => None,
        }
    }

    pub(super) fn rate(&self, name: &str) -> Option<Rate> {
        match self.get(name)?.value {
            ParsedArgument::Rate(rate) => Some(rate),
            _ => None,
        }
    }

    pub(super) fn texts(&self, name: &str) -> Option<&[String]> {
        match &self.get(name)?.value {
            ParsedArgument::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    pub(super) fn string_map(&self, name: &str) -> Labels {
        match self.get(name).map(|read| &read.value) {
            Some(ParsedArgument::Map(items)) => items.iter().cloned().collect(),
            _ => Labels::default(),
        }
    }

    pub(super) fn quantities(&self, name: &str) -> &[(String, i64)] {
        match self.get(name).map(|read| &read.value) {
            Some(ParsedArgument::Quantities(items)) => items,
            _ => &[],
        }
    }

    pub(super) fn reserved_resources(&self, name: &str) -> BTreeMap<String, Reserved> {
        match self.get(name).map(|read| &read.value) {
            Some(ParsedArgument::Reserved(items)) => items.clone(),
            _ => BTreeMap::new(),
        }
    }

    pub(super) fn eviction_thresholds(&self, name: &str) -> BTreeMap<Signal, Threshold> {
        match self.get(name).map(|read| &read.value) {
            Some(ParsedArgument::Thresholds(items)) => items.clone(),
            _ => BTreeMap::new(),
        }
    }

    pub(super) fn grace_periods(&self, name: &str) -> BTreeMap<Signal, SignedDuration> {
        match self.get(name).map(|read| &read.value) {
            Some(ParsedArgument::Periods(items)) => items.clone(),
            _ => BTreeMap::new(),
        }
    }

    pub(super) fn kubelet_fields(&self, name: &str) -> BTreeMap<String, Json> {
        match self.get(name).map(|read| &read.value) {
            Some(ParsedArgument::Fields(items)) => items.clone(),
            _ => BTreeMap::new(),
        }
    }

    pub(super) fn reference(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            ParsedArgument::Reference(name) => Some(name),
            _ => None,
        }
    }
}
