//! Evaluates paths: a name and the steps into its value.

use std::cell::Cell;
use std::collections::BTreeMap;

use hcl::Value;

use super::{EvalError, EvalResult, Evaluation, Frame, NamedValue, type_error};
use crate::config::diagnostic::ProblemCode;
use crate::config::source::Span;
use crate::config::syntax::{Expr, ExprKind, Step, StepKind};
use crate::config::value::{self, nearest_name, quote_value, type_name};

impl Evaluation<'_> {
    /// Evaluates a name and the steps after it.
    pub(super) fn eval_path(
        &self,
        base: &Expr,
        steps: &[Step],
        span: Span,
        frame: Option<&Frame<'_>>,
    ) -> EvalResult {
        let ExprKind::Variable(name) = &base.kind else {
            let start = self.eval(base, frame)?;
            return self.follow_steps(&start, steps, base.span, frame);
        };
        let mut outer = frame;
        while let Some(at) = outer {
            if at.name == name {
                if at.sensitive {
                    self.sensitive.set(true);
                }
                return self.follow_steps(at.value, steps, base.span, frame);
            }
            outer = at.outer;
        }
        let Some(names) = self.scope.roots.get(name.as_str()) else {
            return Err(self.unknown_root(name, base.span, frame));
        };
        let Some((first, rest)) = steps.split_first() else {
            let detail = format!("{name:?} is not a value by itself.");
            let fault = EvalError::new(span, ProblemCode::Evaluation, detail);
            return Err(fault.help(format!("write {name}.NAME")));
        };
        let second = match &first.kind {
            StepKind::Name(second) => second.clone(),
            StepKind::Index(index) => self.eval_key(index, frame)?,
            _ => {
                let detail = format!("{name:?} has no elements to iterate over.");
                return Err(EvalError::new(first.span, ProblemCode::Evaluation, detail));
            }
        };
        match names.get(&second) {
            Some(Some(known)) => {
                if known.sensitive {
                    self.sensitive.set(true);
                }
                self.follow_steps(&known.value, rest, base.span.up_to(first.span), frame)
            }
            Some(None) => Err(EvalError::already_reported(span)),
            None => Err(unknown_name(name, &second, base.span.up_to(first.span), names)),
        }
    }

    fn unknown_root(&self, name: &str, span: Span, frame: Option<&Frame<'_>>) -> Box<EvalError> {
        let detail = match name {
            "each" => "\"each\" is only available in blocks with a for_each.".to_owned(),
            _ => format!("{name:?} is not available here."),
        };
        let fault = EvalError::new(span, ProblemCode::UnknownReference, detail);
        if name == "each" {
            return fault;
        }
        let mut known: Vec<&str> = self.scope.roots.keys().copied().collect();
        let mut outer = frame;
        while let Some(frame) = outer {
            known.push(frame.name);
            outer = frame.outer;
        }
        let helped = match nearest_name(name, known.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None if known.is_empty() => return fault,
            None => {
                format!("write strings in quotes; expressions here may use {}", known.join(", "))
            }
        };
        fault.help(helped)
    }

    fn follow_steps(
        &self,
        start: &Value,
        steps: &[Step],
        mut span: Span,
        frame: Option<&Frame<'_>>,
    ) -> EvalResult {
        let mut value = start;
        for (index, step) in steps.iter().enumerate() {
            span = span.up_to(step.span);
            match &step.kind {
                StepKind::Name(name) => {
                    value =
                        member_of(value, name, span).map_err(|fault| self.left_out(fault, name))?;
                }
                StepKind::Index(index) => {
                    let key = self.eval(index, frame)?;
                    value = item_at(value, &key, index, span).map_err(|fault| match &key {
                        Value::String(name) => self.left_out(fault, name),
                        _ => fault,
                    })?;
                }
                StepKind::NameSplat | StepKind::Splat => {
                    let rest = &steps[index + 1..];
                    let count = match step.kind {
                        StepKind::Splat => rest.len(),
                        _ => {
                            let names = rest.iter();
                            names.take_while(|s| matches!(s.kind, StepKind::Name(_))).count()
                        }
                    };
                    let (item_steps, rest) = rest.split_at(count);
                    let items = self.eval_splat(value, item_steps, span, frame)?;
                    return self.follow_steps(&items, rest, span, frame);
                }
            }
        }
        self.charge_cost(span, value::copy_cost(value))?;
        Ok(value.clone())
    }

    /// Adds a hint if a name is missing because the output is sensitive.
    fn left_out(&self, fault: Box<EvalError>, name: &str) -> Box<EvalError> {
        match self.evaluator.left_out.borrow().contains(name) {
            false => fault,
            true => fault.help(
                "the Terraform output of this name is sensitive, and sensitive outputs are not \
                 read; use secret(\"NAME\"), or declare an output that is not sensitive",
            ),
        }
    }

    fn eval_splat(
        &self,
        at: &Value,
        steps: &[Step],
        span: Span,
        frame: Option<&Frame<'_>>,
    ) -> EvalResult {
        let items: Vec<&Value> = match at {
            Value::Null => Vec::new(),
            Value::Array(items) => items.iter().collect(),
            single => vec![single],
        };
        let items = items.into_iter().map(|item| self.follow_steps(item, steps, span, frame));
        Ok(Value::Array(items.collect::<Result<_, _>>()?))
    }

    /// The values of the names in an expression, to show with an error.
    pub(super) fn value_notes(
        &self,
        expr: &Expr,
        frame: Option<&Frame<'_>>,
    ) -> Vec<(String, String)> {
        const NOTES_MAX: usize = 4;
        let mut notes: Vec<(String, String)> = Vec::new();
        let mut paths = Vec::new();
        expr.walk(&mut |inner| match &inner.kind {
            ExprKind::Traversal(base, steps) => paths.push((&**base, steps.as_slice())),
            ExprKind::Variable(_) => paths.push((inner, &[][..])),
            _ => {}
        });
        // An error about `each.value` also shows `each.key`.
        let key = [Step { span: expr.span, kind: StepKind::Name("key".to_owned()) }];
        let each_path =
            paths.iter().find(|(base, _)| path_text(base, &[]).as_deref() == Some("each"));
        if let Some((base, _)) = each_path {
            paths.insert(0, (*base, &key[..]));
        }
        for (base, steps) in paths {
            if let Some(note) = self.value_note(base, steps, frame)
                && notes.len() < NOTES_MAX
                && !notes.iter().any(|(text, _)| text.starts_with(&note.0))
            {
                notes.push(note);
            }
        }
        notes
    }

    /// The longest prefix of a path that has a value, with that value.
    fn value_note(
        &self,
        base: &Expr,
        steps: &[Step],
        frame: Option<&Frame<'_>>,
    ) -> Option<(String, String)> {
        for count in (0..=steps.len()).rev() {
            let steps = &steps[..count];
            let name = path_text(base, steps)?;
            let run = Evaluation { quiet: true, sensitive: Cell::new(false), ..*self };
            let Ok(value) = run.eval_path(base, steps, base.span, frame) else {
                continue;
            };
            let text = match run.sensitive.get() {
                true => "is sensitive".to_owned(),
                false => format!("is {}", quote_value(&value)),
            };
            return Some((name, text));
        }
        None
    }
}

/// The error for an undeclared `root.name`.
pub(super) fn unknown_name(
    root: &str,
    name: &str,
    span: Span,
    names: &BTreeMap<String, Option<NamedValue>>,
) -> Box<EvalError> {
    let kind = match root {
        "var" => "variable",
        "local" => "local value",
        other => other,
    };
    let detail = format!("There is no {kind} named {name:?}.");
    let fault = EvalError::new(span, ProblemCode::UnknownReference, detail);
    let fault = fault.label("not declared");
    let known = names.keys().map(String::as_str);
    match nearest_name(name, known.clone()) {
        Some(near) => fault.help(format!("did you mean {root}.{near}?")),
        None if names.is_empty() => fault,
        None => {
            let list: Vec<&str> = known.take(8).collect();
            fault.help(format!("expected one of: {}", list.join(", ")))
        }
    }
}

fn member_of<'v>(at: &'v Value, name: &str, span: Span) -> Result<&'v Value, Box<EvalError>> {
    let Value::Object(map) = at else {
        let detail = format!("{} has no attribute {name:?}.", capitalized(type_name(at)));
        return Err(EvalError::new(span, ProblemCode::Evaluation, detail));
    };
    map.get(name).ok_or_else(|| {
        let detail = format!("The map has no key {name:?}.");
        let fault = EvalError::new(span, ProblemCode::Evaluation, detail);
        let keys = map.keys().map(String::as_str);
        match nearest_name(name, keys.clone()) {
            Some(near) => fault.help(format!("did you mean {near:?}?")),
            None if map.is_empty() => fault,
            None => {
                let list: Vec<&str> = keys.take(8).collect();
                fault.help(format!("its keys are: {}", list.join(", ")))
            }
        }
    })
}

fn item_at<'v>(
    at: &'v Value,
    key: &Value,
    index: &Expr,
    span: Span,
) -> Result<&'v Value, Box<EvalError>> {
    match at {
        Value::Object(_) => {
            let name =
                value::to_text(key).ok_or_else(|| type_error(index, "a string as key", key))?;
            member_of(at, &name, span)
        }
        Value::Array(items) => {
            let place = value::to_number(key).and_then(|number| number.as_u64());
            let place = place.ok_or_else(|| type_error(index, "an index of 0 or more", key))?;
            let element = usize::try_from(place).ok().and_then(|place| items.get(place));
            element.ok_or_else(|| {
                let count = items.len();
                let detail = format!("The list has {count} elements, and no index {place}.");
                EvalError::new(span, ProblemCode::Evaluation, detail)
            })
        }
        other => {
            let detail = format!("{} has no elements.", capitalized(type_name(other)));
            Err(EvalError::new(span, ProblemCode::Evaluation, detail))
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    format!("{}{}", first.unwrap_or_default(), chars.as_str())
}

/// A name and its steps as text, if every step is a literal.
fn path_text(base: &Expr, steps: &[Step]) -> Option<String> {
    let ExprKind::Variable(name) = &base.kind else {
        return None;
    };
    let mut text = name.clone();
    for step in steps {
        match &step.kind {
            StepKind::Name(name) => text.push_str(&format!(".{name}")),
            StepKind::Index(index) => match &index.kind {
                ExprKind::Literal(literal) => text.push_str(&format!("[{}]", quote_value(literal))),
                _ => return None,
            },
            StepKind::Splat | StepKind::NameSplat => return None,
        }
    }
    Some(text)
}
