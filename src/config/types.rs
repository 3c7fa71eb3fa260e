//! Type expressions of variables, and the conversion of values to them.

use hcl::{Map, Value};
use thiserror::Error;

use crate::config::source::Span;
use crate::config::syntax::{Call, Expr, ExprKind};
use crate::config::value::{expected_names, quote_value, to_bool, to_number, to_text};

/// The type of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Any,
    Text,
    Number,
    Flag,
    List(Box<Type>),
    Set(Box<Type>),
    Map(Box<Type>),
    Tuple(Vec<Type>),
    /// Each attribute with its type and, if it is optional, its default.
    Object(Vec<(String, Type, Option<Value>)>),
}

/// An error in a type expression.
#[derive(Debug)]
pub(super) struct NoType {
    pub(super) span: Span,
    pub(super) detail: String,
    pub(super) help: Option<String>,
}

const NAMES: [&str; 9] =
    ["any", "string", "number", "bool", "list", "set", "map", "tuple", "object"];

impl NoType {
    fn new(span: Span, detail: impl Into<String>) -> Self {
        Self { span, detail: detail.into(), help: None }
    }
}

impl Type {
    /// Parses a type expression: `string`, `list(string)` and so on.
    pub(super) fn parse(expr: &Expr) -> Result<Self, NoType> {
        match &expr.kind {
            ExprKind::Variable(name) => Self::from_name(name, expr.span),
            ExprKind::Literal(Value::String(name)) => Self::from_name(name, expr.span),
            ExprKind::Call(call) => Self::from_call(call, expr.span),
            _ => Err(NoType::new(expr.span, "A type is expected here.")),
        }
    }

    fn from_name(name: &str, span: Span) -> Result<Self, NoType> {
        Ok(match name {
            "any" => Self::Any,
            "string" => Self::Text,
            "number" => Self::Number,
            "bool" => Self::Flag,
            "list" => Self::List(Box::new(Self::Any)),
            "set" => Self::Set(Box::new(Self::Any)),
            "map" => Self::Map(Box::new(Self::Any)),
            unknown => {
                let mut fault = NoType::new(span, format!("There is no type named {unknown:?}."));
                fault.help = Some(expected_names(unknown, &NAMES));
                return Err(fault);
            }
        })
    }

    fn from_call(call: &Call, span: Span) -> Result<Self, NoType> {
        let [inner] = call.args.as_slice() else {
            let detail = format!("The type {:?} takes one argument.", call.name);
            return Err(NoType::new(span, detail));
        };
        Ok(match (call.name.as_str(), &inner.kind) {
            ("list", _) => Self::List(Box::new(Self::parse(inner)?)),
            ("set", _) => Self::Set(Box::new(Self::parse(inner)?)),
            ("map", _) => Self::Map(Box::new(Self::parse(inner)?)),
            ("tuple", ExprKind::List(items)) => {
                Self::Tuple(items.iter().map(Self::parse).collect::<Result<_, _>>()?)
            }
            ("object", ExprKind::Object(items)) => {
                let mut attributes = Vec::new();
                for (key, item) in items {
                    let Some(name) = key.literal_text() else {
                        return Err(NoType::new(key.span, "An attribute name is expected here."));
                    };
                    let (kind, default) = Self::parse_attribute(item)?;
                    attributes.push((name.to_owned(), kind, default));
                }
                Self::Object(attributes)
            }
            ("tuple", _) => {
                return Err(NoType::new(
                    inner.span,
                    "The types of a tuple must be in square brackets.",
                ));
            }
            ("object", _) => {
                return Err(NoType::new(inner.span, "The types of an object must be in braces."));
            }
            (name, _) => return Self::from_name(name, call.name_span),
        })
    }

    /// Parses the type of an attribute, which may be in `optional(…)`.
    fn parse_attribute(expr: &Expr) -> Result<(Self, Option<Value>), NoType> {
        let call = match &expr.kind {
            ExprKind::Call(call) if call.name == "optional" => call,
            _ => return Ok((Self::parse(expr)?, None)),
        };
        match call.args.as_slice() {
            [kind] => Ok((Self::parse(kind)?, Some(Value::Null))),
            [kind, default] => match &default.kind {
                ExprKind::Literal(literal) => Ok((Self::parse(kind)?, Some(literal.clone()))),
                ExprKind::List(items) if items.is_empty() => {
                    Ok((Self::parse(kind)?, Some(Value::Array(Vec::new()))))
                }
                ExprKind::Object(items) if items.is_empty() => {
                    Ok((Self::parse(kind)?, Some(Value::Object(Map::new()))))
                }
                _ => Err(NoType::new(default.span, "The default must be a literal value.")),
            },
            _ => Err(NoType::new(expr.span, "optional takes a type and, optionally, a default.")),
        }
    }

    /// Returns whether a string from the command line or environment is the value itself, not an
    /// expression.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Text | Self::Number | Self::Flag)
    }

    /// Converts the value to this type, or returns where and why the value does not fit.
    pub(super) fn fit_value(&self, value: &Value) -> Result<Value, TypeMismatch> {
        if value.is_null() {
            return Ok(Value::Null);
        }
        let fitted = match (self, value) {
            (Self::Any, _) => Some(value.clone()),
            (Self::Text, _) => to_text(value).map(Value::String),
            (Self::Number, _) => to_number(value).map(Value::Number),
            (Self::Flag, _) => to_bool(value).map(Value::Bool),
            (Self::List(kind), Value::Array(items)) => Some(Value::Array(kind.fit_all(items)?)),
            (Self::Set(kind), Value::Array(items)) => {
                let mut set = kind.fit_all(items)?;
                set.sort_by_key(to_text);
                set.dedup();
                Some(Value::Array(set))
            }
            (Self::Map(kind), Value::Object(items)) => {
                let mut fitted = Map::new();
                for (key, item) in items {
                    let item = kind.fit_value(item);
                    let item = item.map_err(|mismatch| mismatch.within(format!("key {key:?}")))?;
                    fitted.insert(key.clone(), item);
                }
                Some(Value::Object(fitted))
            }
            (Self::Tuple(kinds), Value::Array(items)) if kinds.len() == items.len() => {
                let pairs = kinds.iter().zip(items);
                let fitted: Result<_, _> = pairs.map(|(kind, item)| kind.fit_value(item)).collect();
                Some(Value::Array(fitted?))
            }
            (Self::Object(attributes), Value::Object(items)) => {
                Some(fit_object(attributes, items)?)
            }
            _ => None,
        };
        fitted.ok_or_else(|| TypeMismatch::Unexpected {
            expected: self.expected_value(),
            found: quote_value(value),
        })
    }

    /// Converts the elements of a list to this type.
    fn fit_all(&self, items: &[Value]) -> Result<Vec<Value>, TypeMismatch> {
        let fitted = items.iter().enumerate().map(|(index, item)| {
            self.fit_value(item).map_err(|mismatch| mismatch.within(format!("element {index}")))
        });
        fitted.collect()
    }

    /// Values of this type, in words.
    fn expected_value(&self) -> String {
        match self {
            Self::Any => "a value".to_owned(),
            Self::Text => "a string".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Flag => "a bool".to_owned(),
            Self::List(_) | Self::Set(_) => "a list".to_owned(),
            Self::Map(_) | Self::Object(_) => "a map".to_owned(),
            Self::Tuple(kinds) => format!("a list of {} elements", kinds.len()),
        }
    }
}

/// Where and why a value does not fit a type, without a full stop.
#[derive(Debug, Error)]
pub(super) enum TypeMismatch {
    #[error("{expected} is expected, not {found}")]
    Unexpected { expected: String, found: String },
    #[error("the attribute {0:?} is missing")]
    MissingAttribute(String),
    #[error("it is null, and null is not allowed")]
    Null,
    #[error("{place}: {mismatch}")]
    Within { place: String, mismatch: Box<Self> },
}

impl TypeMismatch {
    /// The mismatch of a value that contains this one at `place`.
    fn within(self, place: String) -> Self {
        let mismatch = Box::new(self);
        Self::Within { place, mismatch }
    }
}

fn fit_object(
    attributes: &[(String, Type, Option<Value>)],
    items: &Map<String, Value>,
) -> Result<Value, TypeMismatch> {
    let mut fitted = Map::new();
    for (name, kind, default) in attributes {
        let value = match (items.get(name).filter(|item| !item.is_null()), default) {
            (Some(item), _) => kind
                .fit_value(item)
                .map_err(|mismatch| mismatch.within(format!("attribute {name:?}")))?,
            (None, Some(default)) => default.clone(),
            (None, None) if items.contains_key(name) => Value::Null,
            (None, None) => return Err(TypeMismatch::MissingAttribute(name.clone())),
        };
        fitted.insert(name.clone(), value);
    }
    Ok(Value::Object(fitted))
}
