//! Input variables: types, sources of values, validation.

use std::collections::BTreeMap;

use hcl::Value;

use crate::config::decode::Decoder;
use crate::config::decoded_block::DecodedBlock;
use crate::config::diagnostic::ProblemCode;
use crate::config::eval::{EvalError, EvalScope, NamedValue};
use crate::config::report::{error_at, warning_at};
use crate::config::source::Span;
use crate::config::syntax::native::{TemplateSite, parse_expr};
use crate::config::syntax::{Expr, ExprKind};
use crate::config::types::{Type, TypeMismatch};
use crate::config::value::{did_you_mean, to_text};

/// A value for a variable, from a file, the command line or the environment.
#[derive(Clone, Debug)]
pub(super) struct VariableValue {
    pub(super) name: String,
    pub(super) source: GivenSource,
    /// The span of the value.
    pub(super) span: Span,
    /// The severity of the diagnostic if no such variable is declared.
    pub(super) strict: Strictness,
}

/// The form of a value.
#[derive(Clone, Debug)]
pub(super) enum GivenSource {
    /// A string from the command line or the environment.
    Text(String),
    /// An expression from a file.
    Expr(Expr),
}

/// The severity of a value for an undeclared variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strictness {
    /// An error, for values from the command line.
    Error,
    /// A warning, for values from files, which may be shared.
    Warning,
    /// Ignored, for values from the environment.
    Ignored,
}

/// Reports values for undeclared variables.
pub(super) fn check_given(
    reader: &Decoder<'_>,
    given: &[VariableValue],
    declared: &[DecodedBlock],
) {
    for value in given {
        let is_declared = declared.iter().any(|section| section.label() == value.name);
        if is_declared || value.strict == Strictness::Ignored {
            continue;
        }
        let detail = format!("The variable {:?} is not declared.", value.name);
        let code = ProblemCode::UndeclaredVariable;
        let finding = match value.strict {
            Strictness::Error => error_at(code, value.span, detail),
            _ => warning_at(code, value.span, detail),
        };
        let help = did_you_mean(&value.name, declared.iter().map(DecodedBlock::label));
        reader.reporter.add(finding.maybe_help(help));
    }
}

/// A variable's value and its origin.
#[derive(Debug)]
pub(super) struct ResolvedVariable {
    pub(super) known: Option<NamedValue>,
    pub(super) origin: Span,
}

/// Resolves the value of each variable. A variable without a value is `None`.
pub(super) fn resolve_variables(
    reader: &Decoder<'_>,
    declared: &[DecodedBlock],
    given: &[VariableValue],
) -> BTreeMap<String, ResolvedVariable> {
    let resolved = declared.iter().map(|section| {
        let last = given.iter().rfind(|value| value.name == section.label());
        let resolved = resolve_variable(reader, section, last);
        (section.label().to_owned(), resolved)
    });
    resolved.collect()
}

fn resolve_variable(
    reader: &Decoder<'_>,
    section: &DecodedBlock,
    given: Option<&VariableValue>,
) -> ResolvedVariable {
    let sensitive = section.flag("sensitive") == Some(true);
    let kind = section.expr("type").map(Type::parse);
    let default = section.expr("default");
    let origin = given
        .map_or_else(|| default.map_or(section.header, |default| default.span), |given| given.span);
    if sensitive {
        let default = default.map(|default| default.span);
        let hidden = default.into_iter().chain(given.map(|given| given.span));
        hidden.for_each(|span| reader.reporter.hide(span));
    }
    let value = match (kind.transpose(), given, default) {
        (Err(fault), ..) => {
            let code = ProblemCode::InvalidType;
            let finding = error_at(code, fault.span, fault.detail);
            finding.maybe_help(fault.help).report(section);
            None
        }
        (Ok(_), None, None) => {
            report_missing(section);
            None
        }
        (Ok(kind), Some(given), _) => {
            let value = given_value(reader, given, kind.as_ref());
            value.and_then(|value| fit_type(section, &value, kind.as_ref(), origin))
        }
        (Ok(kind), None, Some(default)) => {
            let value = plain_value(reader, default, &section.title);
            value.and_then(|value| fit_type(section, &value, kind.as_ref(), origin))
        }
    };
    if let Some(value) = value.as_ref().filter(|_| sensitive) {
        reader.evaluator.secrets.add_values(value);
    }
    let known = value.map(|value| NamedValue { value, sensitive });
    ResolvedVariable { known, origin }
}

fn report_missing(section: &DecodedBlock) {
    let name = section.label();
    let detail = format!("The variable {name:?} has neither a value nor a default.");
    error_at(ProblemCode::MissingVariable, section.header, detail)
        .help(format!(
            "set it with --var {name}=VALUE, in a file with --var-file, or as OUTRIGGER_VAR_{name}"
        ))
        .report(section);
}

/// Evaluates an expression that may use functions, but no names.
fn plain_value(reader: &Decoder<'_>, expr: &Expr, title: &str) -> Option<Value> {
    match reader.evaluator.evaluate(expr, &EvalScope::default(), None) {
        Ok(evaluated) => Some(evaluated.value),
        Err(fault) => {
            let fault = match fault.code {
                ProblemCode::UnknownReference => Box::new(EvalError {
                    detail: "The value of a variable cannot depend on other values.".to_owned(),
                    help: Some("use a local value, which can".to_owned()),
                    ..*fault
                }),
                _ => fault,
            };
            reader.reporter.add_fault(*fault, title);
            None
        }
    }
}

fn given_value(reader: &Decoder<'_>, given: &VariableValue, kind: Option<&Type>) -> Option<Value> {
    let text = match &given.source {
        GivenSource::Expr(expr) => return plain_value(reader, expr, ""),
        GivenSource::Text(text) => text,
    };
    let literal = Value::String(text.clone());
    let Some(kind) = kind.filter(|kind| !kind.is_plain()) else {
        return Some(literal);
    };
    let place = TemplateSite::From(Span::new(given.span.file, 0, text.len()));
    match parse_expr(text, place) {
        Ok(expr)
            if *kind == Type::Any
                && !matches!(expr.kind, ExprKind::List(_) | ExprKind::Object(_)) =>
        {
            let evaluated = reader.evaluator.evaluate(&expr, &EvalScope::default(), None);
            Some(evaluated.map_or(literal, |evaluated| evaluated.value))
        }
        Ok(expr) => plain_value(reader, &expr, ""),
        Err(_) if *kind == Type::Any => Some(literal),
        Err(error) => {
            let detail = format!(
                "The value of the variable {:?} must be an expression, because of its type: {}.",
                given.name,
                error.message()
            );
            let span = Span::new(given.span.file, error.location().offset(), text.len());
            let finding = error_at(ProblemCode::Syntax, span, detail);
            reader.reporter.add(finding);
            None
        }
    }
}

fn fit_type(
    section: &DecodedBlock,
    value: &Value,
    kind: Option<&Type>,
    origin: Span,
) -> Option<Value> {
    let fitted = match kind {
        _ if value.is_null() && section.flag("nullable") == Some(false) => Err(TypeMismatch::Null),
        None => Ok(value.clone()),
        Some(kind) => kind.fit_value(value),
    };
    let mismatch = match fitted {
        Ok(value) => return Some(value),
        Err(mismatch) => mismatch,
    };
    let name = section.label();
    let why = match section.flag("sensitive") {
        Some(true) => "the value is sensitive and not shown".to_owned(),
        _ => mismatch.to_string(),
    };
    let detail = format!("The value of the variable {name:?} does not fit its type: {why}.");
    let mut finding = error_at(ProblemCode::WrongType, origin, detail);
    if let Some(kind) = section.expr("type") {
        finding = finding.also(kind.span, "its type");
    }
    finding.report(section);
    None
}

/// Checks the validation rules, which may refer to all variables.
pub(super) fn check_validations(
    reader: &Decoder<'_>,
    declared: &[DecodedBlock],
    resolved: &BTreeMap<String, ResolvedVariable>,
) {
    for section in declared {
        let found = resolved.get(section.label()).filter(|resolved| resolved.known.is_some());
        let Some(resolved) = found else {
            continue;
        };
        for rule in section.blocks("validation") {
            check_rule(reader, section, rule, resolved.origin);
        }
    }
}

fn check_rule(reader: &Decoder<'_>, section: &DecodedBlock, rule: &DecodedBlock, origin: Span) {
    let (Some(condition), Some(message)) = (rule.expr("condition"), rule.expr("error_message"))
    else {
        return;
    };
    let Some(evaluated) = reader.evaluate(condition, &rule.title) else {
        return;
    };
    match evaluated.value {
        Value::Bool(true) => {}
        Value::Bool(false) => {
            let detail = match reader.evaluate(message, &rule.title) {
                Some(message) if message.sensitive => {
                    "The error message is not shown, because it contains a sensitive value."
                        .to_owned()
                }
                Some(message) => to_text(&message.value).unwrap_or_default(),
                None => return,
            };
            error_at(ProblemCode::ValidationFailed, origin, detail)
                .also(condition.span, "rejected by this rule")
                .report(section);
        }
        _ => {
            let detail = "A condition must be true or false.";
            rule.error(ProblemCode::WrongType, condition.span, detail);
        }
    }
}
