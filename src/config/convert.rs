//! Converts the value of an expression to the type of an argument.

use std::collections::BTreeMap;

use hcl::Value;
use jiff::SignedDuration;
use serde_json::Value as Json;

use crate::config::diagnostic::ProblemCode;
use crate::config::id_format::IdFormat;
use crate::config::kubernetes_names::{is_address, name_fault};
use crate::config::schema::{ArgumentType, duration_text};
use crate::config::syntax::PathStep;
use crate::config::value::{did_you_mean, number_text, quote_value, to_bool, to_number, to_text};
use crate::model::node_class::kubelet::{Reserved, Signal, Threshold};
use crate::model::overlay::{AdjustmentError, PriceAdjustment};
use crate::model::pool::{BudgetNodes, Rate};
use crate::model::quantity::parse_whole;

// Kubelet eviction thresholds.
mod threshold;
// Known fields of KubeletConfiguration.
mod kubelet_config;
// Conversion of maps.
mod map;

/// The converted value of an argument.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ParsedArgument {
    Text(String),
    Flag(bool),
    Whole(i64),
    Number(f64),
    PriceAdjustment(PriceAdjustment),
    /// A duration; `None` means `"never"`.
    Duration(Option<SignedDuration>),
    Allowance(BudgetNodes),
    Rate(Rate),
    Texts(Vec<String>),
    Map(Vec<(String, String)>),
    /// `cpu` is in thousandths.
    Quantities(Vec<(String, i64)>),
    Reserved(BTreeMap<String, Reserved>),
    Thresholds(BTreeMap<Signal, Threshold>),
    Periods(BTreeMap<Signal, SignedDuration>),
    Fields(BTreeMap<String, Json>),
    /// The name after the dot.
    Reference(String),
}

/// An error in a value or in a part of it.
#[derive(Clone, Debug)]
pub(super) struct ConversionError {
    pub(super) path: Vec<PathStep>,
    pub(super) code: ProblemCode,
    pub(super) detail: String,
    pub(super) help: Option<String>,
}

/// Converts the value to `kind`, or returns all errors in it. Messages refer to the value as
/// `name`.
pub(super) fn convert_argument(
    kind: ArgumentType,
    name: &str,
    value: &Value,
) -> Result<ParsedArgument, Vec<ConversionError>> {
    let converter = Converter { kind, name };
    match kind {
        ArgumentType::Texts | ArgumentType::SomeOf(_) => converter.convert_list(value),
        ArgumentType::Tags
        | ArgumentType::Searched
        | ArgumentType::Labels
        | ArgumentType::Annotations
        | ArgumentType::Quantities
        | ArgumentType::Reserved
        | ArgumentType::Thresholds
        | ArgumentType::Periods
        | ArgumentType::KubeletFields => converter.convert_map(value),
        _ => converter.convert_single(value).map_err(|fault| vec![fault]),
    }
}

impl ConversionError {
    /// Replaces the message.
    fn detail(self, detail: String) -> Self {
        Self { detail, ..self }
    }

    /// Adds a hint.
    fn help(self, help: impl Into<String>) -> Self {
        let help = Some(help.into());
        Self { help, ..self }
    }
}

struct Converter<'a> {
    kind: ArgumentType,
    name: &'a str,
}

impl Converter<'_> {
    fn conversion_error(&self, code: ProblemCode, value: &Value) -> ConversionError {
        let (name, wants, got) = (self.name, self.kind.expected_value(), quote_value(value));
        ConversionError {
            path: Vec::new(),
            code,
            detail: format!("The argument {name:?} must be {wants}, not {got}."),
            help: None,
        }
    }

    fn wrong_type(&self, value: &Value) -> ConversionError {
        self.conversion_error(ProblemCode::WrongType, value)
    }

    fn string_value(&self, value: &Value) -> Result<String, ConversionError> {
        to_text(value).ok_or_else(|| self.wrong_type(value))
    }

    fn convert_single(&self, value: &Value) -> Result<ParsedArgument, ConversionError> {
        Ok(match self.kind {
            ArgumentType::Name => {
                let text = self.string_value(value)?;
                if let Some(why) = name_fault(&text) {
                    return Err(self.conversion_error(ProblemCode::InvalidLabel, value).help(why));
                }
                ParsedArgument::Text(text)
            }
            ArgumentType::Path => self.valid_text(value, |text| !text.is_empty())?,
            ArgumentType::Address => self.valid_text(value, is_address)?,
            ArgumentType::OneOf(names) => self.one_of(names, value)?,
            ArgumentType::Flag => match to_bool(value) {
                Some(flag) => ParsedArgument::Flag(flag),
                None => return Err(self.wrong_type(value)),
            },
            ArgumentType::Whole(min, max) => {
                let Some(number) = to_number(value) else {
                    return Err(self.wrong_type(value));
                };
                match number.as_i64() {
                    Some(whole) if (min..=max).contains(&whole) => ParsedArgument::Whole(whole),
                    _ => return Err(self.conversion_error(ProblemCode::OutOfRange, value)),
                }
            }
            ArgumentType::Number(min, max) => self.convert_number(min, max, value)?,
            ArgumentType::PriceAdjustment => self.convert_price_adjustment(value)?,
            ArgumentType::Duration { min_ms, max_ms, never } => {
                self.convert_duration(min_ms, max_ms, never, value)?
            }
            ArgumentType::Size(min, max) => self.convert_size(min, max, value)?,
            ArgumentType::Form(form) => self.convert_format(form, value)?,
            ArgumentType::Allowance => self.convert_budget_nodes(value)?,
            ArgumentType::Rate => match Rate::parse(&self.string_value(value)?) {
                Some(rate) => ParsedArgument::Rate(rate),
                None => return Err(self.conversion_error(ProblemCode::InvalidValue, value)),
            },
            ArgumentType::Reference(kind) => self.convert_reference(kind, value)?,
            ArgumentType::Text
            | ArgumentType::Texts
            | ArgumentType::SomeOf(_)
            | ArgumentType::Tags
            | ArgumentType::Searched
            | ArgumentType::Labels
            | ArgumentType::Annotations
            | ArgumentType::Quantities
            | ArgumentType::Reserved
            | ArgumentType::Thresholds
            | ArgumentType::Periods
            | ArgumentType::KubeletFields
            | ArgumentType::Expression => ParsedArgument::Text(self.string_value(value)?),
        })
    }

    /// A string for which `is_valid` holds.
    fn valid_text(
        &self,
        value: &Value,
        is_valid: impl Fn(&str) -> bool,
    ) -> Result<ParsedArgument, ConversionError> {
        match self.string_value(value)? {
            text if is_valid(&text) => Ok(ParsedArgument::Text(text)),
            _ => Err(self.conversion_error(ProblemCode::InvalidValue, value)),
        }
    }

    fn convert_number(
        &self,
        min: i64,
        max: i64,
        value: &Value,
    ) -> Result<ParsedArgument, ConversionError> {
        let Some(number) = to_number(value).and_then(|number| number.as_f64()) else {
            return Err(self.wrong_type(value));
        };
        #[expect(clippy::cast_precision_loss, reason = "the bounds of the schema are small")]
        if number < min as f64 || number > max as f64 {
            return Err(self.conversion_error(ProblemCode::OutOfRange, value));
        }
        Ok(ParsedArgument::Number(number))
    }

    fn convert_size(
        &self,
        min: i64,
        max: i64,
        value: &Value,
    ) -> Result<ParsedArgument, ConversionError> {
        let size = parse_whole(&self.string_value(value)?);
        let size = size.map_err(|error| self.quantity_fault(&error.to_string()))?;
        if !(min..=max).contains(&size) {
            return Err(self.conversion_error(ProblemCode::OutOfRange, value));
        }
        Ok(ParsedArgument::Whole(size))
    }

    fn convert_format(
        &self,
        form: IdFormat,
        value: &Value,
    ) -> Result<ParsedArgument, ConversionError> {
        let text = self.string_value(value)?;
        if form.is_valid(&text) {
            return Ok(ParsedArgument::Text(text));
        }
        let mut fault = self.conversion_error(ProblemCode::InvalidValue, value);
        fault.help = form.hint_for(&text);
        Err(fault)
    }

    fn convert_price_adjustment(&self, value: &Value) -> Result<ParsedArgument, ConversionError> {
        let text = self.string_value(value)?;
        let adjustment = PriceAdjustment::parse(&text).map_err(|why| {
            let help = match why {
                AdjustmentError::Unsigned(_) => {
                    format!(
                        "write \"+{text}\" or \"-{text}\"; to set a price, write price = {text}"
                    )
                }
                AdjustmentError::BelowNothing(_) => "the lowest adjustment is \"-100%\"".to_owned(),
                AdjustmentError::Malformed(_) => {
                    "write a sign and a number of up to five digits; dollars have up to six \
                     decimals, percentages up to four"
                        .to_owned()
                }
            };
            self.conversion_error(ProblemCode::InvalidValue, value).help(help)
        })?;
        Ok(ParsedArgument::PriceAdjustment(adjustment))
    }

    fn one_of(&self, names: &[&str], value: &Value) -> Result<ParsedArgument, ConversionError> {
        let text = self.string_value(value)?;
        if names.contains(&text.as_str()) {
            return Ok(ParsedArgument::Text(text));
        }
        let mut fault = self.conversion_error(ProblemCode::InvalidValue, value);
        fault.help = did_you_mean(&text, names.iter().copied());
        Err(fault)
    }

    fn convert_duration(
        &self,
        min: i64,
        max: i64,
        never: bool,
        value: &Value,
    ) -> Result<ParsedArgument, ConversionError> {
        let invalid = ProblemCode::InvalidDuration;
        let text = match value {
            Value::Number(number) => {
                let number = number_text(number);
                let help = format!("add a unit: \"{number}s\", \"{number}m\" or \"{number}h\"");
                return Err(self.conversion_error(invalid, value).help(help));
            }
            other => self.string_value(other)?,
        };
        if text.eq_ignore_ascii_case("never") {
            return match never {
                true => Ok(ParsedArgument::Duration(None)),
                false => Err(self.conversion_error(invalid, value)),
            };
        }
        let Some(duration) = parse_duration(&text) else {
            let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
            let help = match days.and_then(|days| days.checked_mul(24)) {
                Some(hours) => format!("write \"{hours}h\": the units are ms, s, m and h"),
                None => "write it like \"90s\", \"10m\" or \"1h30m\"".to_owned(),
            };
            return Err(self.conversion_error(invalid, value).help(help));
        };
        let ms = duration.as_millis();
        if ms < i128::from(min) || ms > i128::from(max) {
            let (name, got) = (self.name, quote_value(value));
            let (min, max) = (duration_text(min), duration_text(max));
            let detail =
                format!("The argument {name:?} must be a duration from {min} to {max}, not {got}.");
            return Err(self.conversion_error(ProblemCode::OutOfRange, value).detail(detail));
        }
        Ok(ParsedArgument::Duration(Some(duration)))
    }

    fn convert_budget_nodes(&self, value: &Value) -> Result<ParsedArgument, ConversionError> {
        let text = self.string_value(value)?;
        if let Some(percent) = text.strip_suffix('%') {
            let percent: i64 = percent.parse().map_err(|_| self.wrong_type(value))?;
            return match u8::try_from(percent) {
                Ok(percent) if percent <= 100 => {
                    Ok(ParsedArgument::Allowance(BudgetNodes::Percent(percent)))
                }
                _ => {
                    let (name, got) = (self.name, quote_value(value));
                    let detail = format!(
                        "The argument {name:?} must be a percentage from 0% to 100%, not {got}."
                    );
                    Err(self.conversion_error(ProblemCode::OutOfRange, value).detail(detail))
                }
            };
        }
        let Some(number) = to_number(value) else {
            return Err(self.wrong_type(value));
        };
        let count = number.as_u64().and_then(|count| u32::try_from(count).ok());
        match count {
            Some(count) => Ok(ParsedArgument::Allowance(BudgetNodes::Nodes(count))),
            None => Err(self.conversion_error(ProblemCode::OutOfRange, value)),
        }
    }

    fn convert_reference(
        &self,
        kind: &str,
        value: &Value,
    ) -> Result<ParsedArgument, ConversionError> {
        let text = self.string_value(value)?;
        match text.split_once('.') {
            Some((prefix, name)) if prefix == kind => {
                Ok(ParsedArgument::Reference(name.to_owned()))
            }
            Some(_) => Err(self.wrong_type(value)),
            None => {
                let help = format!("write {kind}.{text}, without quotes");
                Err(self.wrong_type(value).help(help))
            }
        }
    }

    fn convert_list(&self, value: &Value) -> Result<ParsedArgument, Vec<ConversionError>> {
        let Value::Array(items) = value else {
            let mut fault = self.wrong_type(value);
            if let Value::String(text) = value {
                fault.help = Some(format!("write [{text:?}]"));
            }
            return Err(vec![fault]);
        };
        let (mut texts, mut faults) = (Vec::new(), Vec::new());
        for (index, item) in items.iter().enumerate() {
            let text = match self.kind {
                ArgumentType::SomeOf(names) => self.one_of(names, item),
                _ => self.string_value(item).map(ParsedArgument::Text),
            };
            match text {
                Ok(ParsedArgument::Text(text)) => texts.push(text),
                Ok(_) => {}
                Err(mut fault) => {
                    let wants = match self.kind {
                        ArgumentType::SomeOf(names) => ArgumentType::OneOf(names).expected_value(),
                        _ => ArgumentType::Text.expected_value(),
                    };
                    let (name, got) = (self.name, quote_value(item));
                    fault.detail = format!("Each element of {name:?} must be {wants}, not {got}.");
                    fault.path = vec![PathStep::Index(index)];
                    faults.push(fault);
                }
            }
        }
        if faults.is_empty() { Ok(ParsedArgument::Texts(texts)) } else { Err(faults) }
    }

    fn quantity_fault(&self, why: &str) -> ConversionError {
        let detail = format!("Invalid quantity in {:?}: {why}.", self.name);
        self.conversion_error(ProblemCode::InvalidQuantity, &Value::Null).detail(detail)
    }
}

/// Parses a duration: integers, each with one of the units ms, s, m and h.
pub(super) fn parse_duration(text: &str) -> Option<SignedDuration> {
    let mut sum = SignedDuration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|at| *at > 0)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let ms = number.parse::<i64>().ok()?.checked_mul(ms)?;
        sum = sum.checked_add(SignedDuration::from_millis(ms))?;
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::parse_duration;

    #[test]
    fn durations_are_integers_with_units() {
        let cases = [
            ("90s", Some(90_000)),
            ("1h30m", Some(5_400_000)),
            ("0s", Some(0)),
            ("250ms", Some(250)),
            ("", None),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("1.5h", None),
            ("3d", None),
            ("99999999999999999999h", None),
            ("9223372036854775807h", None),
        ];
        for (text, expect) in cases {
            let got = parse_duration(text).map(|duration| duration.as_millis());
            assert_eq!(got, expect, "{text:?}");
        }
    }
}
