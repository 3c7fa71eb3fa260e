//! Converts maps to the types of arguments.

use hcl::{Map, Value};
use thiserror::Error;

use super::kubelet_config::kubelet_field;
use super::threshold::parse_threshold;
use super::{ConversionError, Converter, ParsedArgument, parse_duration};
use crate::config::diagnostic::ProblemCode;
use crate::config::kubernetes_names::{label_key_fault, label_value_fault};
use crate::config::schema::ArgumentType;
use crate::config::syntax::PathStep;
use crate::config::value::{expected_names, quote_value, to_text};
use crate::model::claim::TAG_VALUE_MAX;
use crate::model::node_class::kubelet::{Reserved, Signal, Threshold};
use crate::model::quantity::{QuantityError, parse_milli, parse_whole};

/// EC2 allows 128 characters in a tag key.
const TAG_KEY_MAX: usize = 128;
/// Maximum number of tags in one term. Source: spec/aws.md §1.1.
const SEARCHED_MAX: usize = 20;
/// Resources that a kubelet can reserve.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// Prefixes of tags that only AWS or a launch may set, and the reason. Source: spec/aws.md §1.1 and
/// §5.5, and Outrigger's own tags.
const RESTRICTED: [(&str, &str); 7] = [
    ("aws:", "only AWS sets tags with this prefix"),
    ("eks:eks-cluster-name", "Outrigger sets it at launch"),
    ("kubernetes.io/cluster", "Outrigger sets it at launch"),
    ("karpenter.sh/nodepool", "Outrigger sets it at launch"),
    ("karpenter.sh/nodeclaim", "Outrigger sets it at launch"),
    ("karpenter.k8s.aws/ec2nodeclass", "Outrigger sets it at launch"),
    ("outrigger.dev/", "Outrigger sets tags with this prefix"),
];

impl Converter<'_> {
    pub(super) fn convert_map(
        &self,
        value: &Value,
    ) -> Result<ParsedArgument, Vec<ConversionError>> {
        let Value::Object(items) = value else {
            let help = format!("write {} = {{ … }}", self.name);
            return Err(vec![self.wrong_type(value).help(help)]);
        };
        Ok(match self.kind {
            ArgumentType::Quantities => {
                ParsedArgument::Quantities(self.convert_each(items, Self::convert_quantity)?)
            }
            ArgumentType::Reserved => {
                let pairs = self.convert_each(items, Self::convert_reserved)?;
                ParsedArgument::Reserved(pairs.into_iter().collect())
            }
            ArgumentType::Thresholds => {
                let pairs = self.convert_each(items, Self::convert_threshold)?;
                ParsedArgument::Thresholds(pairs.into_iter().map(|(_, pair)| pair).collect())
            }
            ArgumentType::Periods => {
                let pairs = self.convert_each(items, Self::convert_period)?;
                ParsedArgument::Periods(pairs.into_iter().map(|(_, pair)| pair).collect())
            }
            ArgumentType::KubeletFields => {
                let (mut fields, mut faults) = (Vec::new(), Vec::new());
                for (key, item) in items {
                    match kubelet_field(key, item) {
                        Ok(json) => fields.push((key.clone(), json)),
                        Err(errors) => faults.extend(errors),
                    }
                }
                if !faults.is_empty() {
                    return Err(faults);
                }
                ParsedArgument::Fields(fields.into_iter().collect())
            }
            ArgumentType::Searched if items.is_empty() || items.len() > SEARCHED_MAX => {
                let (name, count) = (self.name, items.len());
                let detail =
                    format!("{name:?} has {count} tags; it must have 1 to {SEARCHED_MAX}.");
                let fault = self.conversion_error(ProblemCode::OutOfRange, value);
                return Err(vec![fault.detail(detail)]);
            }
            ArgumentType::Searched => {
                ParsedArgument::Map(self.convert_each(items, Self::convert_searched_tag)?)
            }
            ArgumentType::Tags => ParsedArgument::Map(self.convert_each(items, Self::convert_tag)?),
            _ => ParsedArgument::Map(self.convert_each(items, Self::convert_label)?),
        })
    }

    /// Converts each element, or returns all errors in them.
    fn convert_each<T>(
        &self,
        items: &Map<String, Value>,
        convert: impl Fn(&Self, &str, &Value) -> Result<T, ConversionError>,
    ) -> Result<Vec<(String, T)>, Vec<ConversionError>> {
        let (mut all, mut faults) = (Vec::new(), Vec::new());
        for (key, item) in items {
            match convert(self, key, item) {
                Ok(converted) => all.push((key.clone(), converted)),
                Err(mut fault) => {
                    if fault.path.is_empty() {
                        fault.path.push(PathStep::Key(key.clone()));
                    }
                    faults.push(fault);
                }
            }
        }
        if faults.is_empty() { Ok(all) } else { Err(faults) }
    }

    fn element_text(&self, key: &str, item: &Value) -> Result<String, ConversionError> {
        to_text(item).ok_or_else(|| {
            let got = quote_value(item);
            self.wrong_type(item)
                .detail(format!("The value of {key:?} must be a string, not {got}."))
        })
    }

    /// An error in a key.
    fn bad_key(&self, code: ProblemCode, key: &str, detail: String) -> ConversionError {
        ConversionError {
            path: vec![PathStep::KeyItself(key.to_owned())],
            code,
            detail,
            help: None,
        }
    }

    fn label_key(&self, key: &str) -> Result<(), ConversionError> {
        let Some(why) = label_key_fault(key) else {
            return Ok(());
        };
        let detail = format!("{key:?} is not a valid key. {why}");
        Err(self.bad_key(ProblemCode::InvalidLabel, key, detail))
    }

    fn convert_label(&self, key: &str, item: &Value) -> Result<String, ConversionError> {
        self.label_key(key)?;
        let text = self.element_text(key, item)?;
        match label_value_fault(&text).filter(|_| self.kind == ArgumentType::Labels) {
            Some(why) => {
                let detail =
                    format!("{} is not a valid value of {key:?}. {why}", quote_value(item));
                Err(self.conversion_error(ProblemCode::InvalidLabel, item).detail(detail))
            }
            None => Ok(text),
        }
    }

    fn convert_quantity(&self, key: &str, item: &Value) -> Result<i64, ConversionError> {
        self.label_key(key)?;
        let text = self.element_text(key, item)?;
        self.convert_amount(key, &text)
    }

    fn convert_amount(&self, key: &str, text: &str) -> Result<i64, ConversionError> {
        parse_amount(key, text).map_err(|error| {
            let mut fault = self.quantity_fault(&error.to_string());
            let bytes = text.strip_suffix(['B', 'b']);
            let short = bytes.filter(|short| parse_whole(short).is_ok());
            fault.help = short.map(|short| match short.ends_with('i') {
                true => format!("write {short:?}"),
                false => format!("write {short:?}, or \"{short}i\" for powers of two"),
            });
            fault
        })
    }

    fn convert_reserved(&self, key: &str, item: &Value) -> Result<Reserved, ConversionError> {
        if !RESERVABLE.contains(&key) {
            let detail = format!("The kubelet cannot reserve {key:?}.");
            let help = format!("expected one of: {}", RESERVABLE.join(", "));
            return Err(self.bad_key(ProblemCode::InvalidValue, key, detail).help(help));
        }
        let text = self.element_text(key, item)?;
        let amount = self.convert_amount(key, &text)?;
        Ok(Reserved { amount, text })
    }

    fn eviction_signal(&self, key: &str) -> Result<Signal, ConversionError> {
        Signal::parse(key).ok_or_else(|| {
            let detail = format!("There is no eviction signal {key:?}.");
            self.bad_key(ProblemCode::InvalidValue, key, detail)
                .help(expected_names(key, &Signal::NAMES))
        })
    }

    fn convert_threshold(
        &self,
        key: &str,
        item: &Value,
    ) -> Result<(Signal, Threshold), ConversionError> {
        let signal = self.eviction_signal(key)?;
        let text = self.element_text(key, item)?;
        let threshold = parse_threshold(&text).ok_or_else(|| {
            let detail = format!("{} is not a valid threshold for {key:?}.", quote_value(item));
            let help = "write a quantity such as \"100Mi\", or a percentage from 0% to 100% with \
                        at most two decimals, such as \"10%\"";
            let fault = self.conversion_error(ProblemCode::InvalidQuantity, item);
            fault.detail(detail).help(help)
        })?;
        Ok((signal, threshold))
    }

    fn convert_period(
        &self,
        key: &str,
        item: &Value,
    ) -> Result<(Signal, jiff::SignedDuration), ConversionError> {
        let signal = self.eviction_signal(key)?;
        let text = self.element_text(key, item)?;
        let period = parse_duration(&text).ok_or_else(|| {
            self.conversion_error(ProblemCode::InvalidDuration, item)
                .detail(format!("{} is not a duration.", quote_value(item)))
                .help("write it like \"90s\" or \"1m30s\"")
        })?;
        Ok((signal, period))
    }

    /// Converts a tag that Outrigger sets on resources. EC2 allows any characters.
    fn convert_tag(&self, key: &str, item: &Value) -> Result<String, ConversionError> {
        let length = key.chars().count();
        if length == 0 || length > TAG_KEY_MAX {
            let detail = format!("The key of a tag must have 1 to {TAG_KEY_MAX} characters.");
            return Err(self.bad_key(ProblemCode::OutOfRange, key, detail));
        }
        if let Some((_, why)) = RESTRICTED.iter().find(|(start, _)| key.starts_with(start)) {
            let detail = format!("The tag {key:?} cannot be set here: {why}.");
            return Err(self.bad_key(ProblemCode::RestrictedTag, key, detail));
        }
        let text = self.element_text(key, item)?;
        if text.chars().count() > TAG_VALUE_MAX {
            let detail =
                format!("The value of a tag must have at most {TAG_VALUE_MAX} characters.");
            return Err(self.conversion_error(ProblemCode::OutOfRange, item).detail(detail));
        }
        Ok(text)
    }

    /// Converts a tag by which resources are selected.
    fn convert_searched_tag(&self, key: &str, item: &Value) -> Result<String, ConversionError> {
        if key.is_empty() {
            let detail = "The key of a tag must not be empty.".to_owned();
            return Err(self.bad_key(ProblemCode::InvalidValue, key, detail));
        }
        let text = self.element_text(key, item)?;
        if text.is_empty() {
            let fault = self.conversion_error(ProblemCode::InvalidValue, item);
            return Err(fault
                .detail(format!("The value of {key:?} is empty."))
                .help("write \"*\" to match any value"));
        }
        Ok(text)
    }
}

/// Why a text is not an amount of a resource, without a full stop.
#[derive(Debug, Error)]
enum AmountError {
    #[error("{text:?} is not a number of {resource}")]
    NotACount { text: String, resource: String },
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    #[error("{0:?} is negative")]
    Negative(String),
}

/// Parses a quantity of a resource: `cpu` in thousandths, nodes and pods as counts.
fn parse_amount(resource: &str, text: &str) -> Result<i64, AmountError> {
    if matches!(resource, "nodes" | "pods") && text.parse::<u32>().is_err() {
        let (text, resource) = (text.to_owned(), resource.to_owned());
        return Err(AmountError::NotACount { text, resource });
    }
    let amount = match resource {
        "cpu" => parse_milli(text)?,
        _ => parse_whole(text)?,
    };
    if amount < 0 {
        return Err(AmountError::Negative(text.to_owned()));
    }
    Ok(amount)
}
