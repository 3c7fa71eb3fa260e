//! Type expressions of variables, and the conversion of values to them.

use hcl::{Map, Value};

use crate::config::source::Span;
use crate::config::syntax::{Call, Expr, ExprKind};
use crate::config::value::{nearest, quote, to_bool, to_number, to_text};

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

const NAMES: [&str; 9] = [
    "any", "string", "number", "bool", "list", "set", "map", "tuple", "object",
];

impl NoType {
    fn new(span: Span, detail: impl Into<String>) -> Self {
        Self {
            span,
            detail: detail.into(),
            help: None,
        }
    }
}

impl Type {
    /// Parses a type expression: `string`, `list(string)` and so on.
    pub(super) fn parse(expr: &Expr) -> Result<Self, NoType> {
        match &expr.kind {
            ExprKind::Variable(name) => Self::named(name, expr.span),
            ExprKind::Literal(Value::String(name)) => Self::named(name, expr.span),
            ExprKind::Call(call) => Self::constructed(call, expr.span),
            _ => Err(NoType::new(expr.span, "A type is expected here.")),
        }
    }

    fn named(name: &str, span: Span) -> Result<Self, NoType> {
        let any = || Box::new(Self::Any);
        Ok(match name {
            "any" => Self::Any,
            "string" => Self::Text,
            "number" => Self::Number,
            "bool" => Self::Flag,
            "list" => Self::List(any()),
            "set" => Self::Set(any()),
            "map" => Self::Map(any()),
            other => {
                let mut fault = NoType::new(span, format!("There is no type named {other:?}."));
                fault.help = match nearest(other, NAMES) {
                    Some(near) => Some(format!("did you mean {near:?}?")),
                    None => Some(format!("expected one of: {}", NAMES.join(", "))),
                };
                return Err(fault);
            }
        })
    }

    fn constructed(call: &Call, span: Span) -> Result<Self, NoType> {
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
                    let (kind, default) = Self::attribute(item)?;
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
                return Err(NoType::new(
                    inner.span,
                    "The types of an object must be in braces.",
                ));
            }
            (name, _) => return Self::named(name, call.name_span),
        })
    }

    /// Parses the type of an attribute, which may be in `optional(…)`.
    fn attribute(expr: &Expr) -> Result<(Self, Option<Value>), NoType> {
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
                _ => Err(NoType::new(
                    default.span,
                    "The default must be a literal value.",
                )),
            },
            _ => Err(NoType::new(
                expr.span,
                "optional takes a type and, optionally, a default.",
            )),
        }
    }

    /// Reports if a string from the command line or environment is the value itself, not an
    /// expression.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Text | Self::Number | Self::Flag)
    }

    /// Converts the value to this type, or returns where and why it does not fit.
    pub(super) fn fit(&self, value: &Value) -> Result<Value, String> {
        if value.is_null() {
            return Ok(Value::Null);
        }
        let fail = |wants: &str| Err(format!("{wants} is expected, not {}", quote(value)));
        let list = |kind: &Self, items: &[Value]| -> Result<Vec<Value>, String> {
            let fitted = items.iter().enumerate().map(|(index, item)| {
                kind.fit(item)
                    .map_err(|why| format!("element {index}: {why}"))
            });
            fitted.collect()
        };
        match (self, value) {
            (Self::Any, _) => Ok(value.clone()),
            (Self::Text, _) => {
                to_text(value).map_or_else(|| fail("a string"), |text| Ok(text.into()))
            }
            (Self::Number, _) => to_number(value)
                .map_or_else(|| fail("a number"), |number| Ok(Value::Number(number))),
            (Self::Flag, _) => {
                to_bool(value).map_or_else(|| fail("a bool"), |flag| Ok(Value::Bool(flag)))
            }
            (Self::List(kind), Value::Array(items)) => Ok(Value::Array(list(kind, items)?)),
            (Self::Set(kind), Value::Array(items)) => {
                let mut set: Vec<Value> = Vec::new();
                let mut fitted = list(kind, items)?;
                fitted.sort_by_key(to_text);
                for item in fitted {
                    if set.last() != Some(&item) {
                        set.push(item);
                    }
                }
                Ok(Value::Array(set))
            }
            (Self::Map(kind), Value::Object(items)) => {
                let fitted = items.iter().map(|(key, item)| {
                    let fitted = kind
                        .fit(item)
                        .map_err(|why| format!("key {key:?}: {why}"))?;
                    Ok::<_, String>((key.clone(), fitted))
                });
                Ok(Value::Object(fitted.collect::<Result<_, _>>()?))
            }
            (Self::Tuple(kinds), Value::Array(items)) if kinds.len() == items.len() => {
                let pairs = kinds.iter().zip(items);
                Ok(Value::Array(
                    pairs
                        .map(|(kind, item)| kind.fit(item))
                        .collect::<Result<_, _>>()?,
                ))
            }
            (Self::Object(attributes), Value::Object(items)) => object(attributes, items),
            (Self::List(_) | Self::Set(_), _) => fail("a list"),
            (Self::Map(_) | Self::Object(_), _) => fail("a map"),
            (Self::Tuple(kinds), _) => fail(&format!("a list of {} elements", kinds.len())),
        }
    }
}

fn object(
    attributes: &[(String, Type, Option<Value>)],
    items: &Map<String, Value>,
) -> Result<Value, String> {
    let mut fitted = Map::new();
    for (name, kind, default) in attributes {
        let value = match (items.get(name).filter(|item| !item.is_null()), default) {
            (Some(item), _) => kind
                .fit(item)
                .map_err(|why| format!("attribute {name:?}: {why}"))?,
            (None, Some(default)) => default.clone(),
            (None, None) if items.contains_key(name) => Value::Null,
            (None, None) => return Err(format!("the attribute {name:?} is missing")),
        };
        fitted.insert(name.clone(), value);
    }
    Ok(Value::Object(fitted))
}
