//! Evaluates calls, and the functions that need unevaluated arguments.

use std::cell::Cell;

use hcl::{Map, Value};

use super::{EvalError, EvalResult, EvalScope, Evaluation, Frame, type_error};
use crate::config::diagnostic::ProblemCode;
use crate::config::functions::{self, Args};
use crate::config::source::Span;
use crate::config::syntax::native::{TemplateSite, parse_template};
use crate::config::syntax::{Call, Expr};
use crate::config::value::{self, nearest_name};

impl Evaluation<'_> {
    pub(super) fn eval_call(
        &self,
        call: &Call,
        span: Span,
        frame: Option<&Frame<'_>>,
    ) -> EvalResult {
        match call.name.as_str() {
            "try" => return self.eval_try(call, span, frame),
            "can" if call.args.len() == 1 => {
                let outcome = self.eval_silently(&call.args[0], frame);
                return match outcome {
                    Err(fault) if fault.silent || fault.code == ProblemCode::LimitExceeded => {
                        Err(fault)
                    }
                    outcome => Ok(Value::Bool(outcome.is_ok())),
                };
            }
            _ => {}
        }
        let mut values = Vec::with_capacity(call.args.len());
        for (index, arg) in call.args.iter().enumerate() {
            let got = self.eval(arg, frame)?;
            match got {
                Value::Array(items) if call.expand && index + 1 == call.args.len() => {
                    values.extend(items);
                }
                other if call.expand && index + 1 == call.args.len() => {
                    return Err(type_error(arg, "a list before ...", &other));
                }
                other => values.push(other),
            }
        }
        if call.name == "templatefile" {
            return self.eval_templatefile(call, &values, span);
        }
        let Some(function) = functions::find(&call.name) else {
            return Err(unknown_function(call));
        };
        let (min, max) = (function.args_min, function.args_max);
        check_count(call, values.len(), min, max)?;
        let args = Args { values, environment: &self.evaluator.environment };
        let answer = (function.call)(&args).map_err(|refusal| {
            let argument = refusal.arg.and_then(|arg| call.args.get(arg).or(call.args.last()));
            let detail = format!("Call to function {:?} failed: {}.", call.name, refusal.text);
            EvalError::new(argument.map_or(span, |arg| arg.span), ProblemCode::FunctionCall, detail)
        })?;
        if call.name == "secret" {
            self.sensitive.set(true);
        }
        self.charge_cost(span, value::copy_cost(&answer))?;
        Ok(answer)
    }

    /// Evaluates an expression that may fail, without collecting values for its error.
    fn eval_silently(&self, expr: &Expr, frame: Option<&Frame<'_>>) -> EvalResult {
        let run = Evaluation { quiet: true, sensitive: Cell::new(self.sensitive.get()), ..*self };
        let outcome = run.eval(expr, frame);
        self.sensitive.set(run.sensitive.get());
        outcome
    }

    fn eval_try(&self, call: &Call, span: Span, frame: Option<&Frame<'_>>) -> EvalResult {
        let mut last = None;
        for arg in &call.args {
            match self.eval_silently(arg, frame) {
                Err(fault) if fault.silent || fault.code == ProblemCode::LimitExceeded => {
                    return Err(fault);
                }
                Err(fault) => last = Some(fault),
                Ok(value) => return Ok(value),
            }
        }
        let why = last.map_or_else(
            || "it needs at least one argument.".to_owned(),
            |fault| {
                format!("no argument can be evaluated. The error of the last one: {}", fault.detail)
            },
        );
        let detail = format!("Call to function \"try\" failed: {why}");
        Err(EvalError::new(span, ProblemCode::FunctionCall, detail))
    }

    fn eval_templatefile(&self, call: &Call, values: &[Value], span: Span) -> EvalResult {
        check_count(call, values.len(), 2, 2)?;
        let (Some(name), Some(vars)) = (values[0].as_str(), values[1].as_object()) else {
            return Err(template_fault(call, "it takes a path and a map of names"));
        };
        if self.templates > 0 {
            let why = "a template cannot render another template";
            return Err(template_fault(call, why));
        }
        let path = self.evaluator.environment.resolve(name);
        let text = (self.evaluator.environment.read)(&path).map_err(|error| {
            template_fault(call, &format!("{} cannot be read: {error}", path.display()))
        })?;
        self.charge_cost(span, value::text_size(&text))?;
        let template = parse_template(&text, TemplateSite::All(span), span).map_err(|error| {
            let (line, path) = (error.location().line(), path.display());
            template_fault(call, &format!("line {line} of {path}: {}", error.message()))
        })?;
        let run = Evaluation {
            templates: self.templates + 1,
            scope: &EvalScope::default(),
            sensitive: Cell::new(self.sensitive.get()),
            quiet: true,
            ..*self
        };
        let outcome = run.with_all(vars, self.sensitive.get(), &template);
        self.sensitive.set(run.sensitive.get());
        outcome.map_err(|mut fault| {
            fault.detail = format!("In the template {}: {}", path.display(), fault.detail);
            fault
        })
    }

    /// Evaluates an expression with all of `vars` in scope.
    fn with_all(&self, vars: &Map<String, Value>, sensitive: bool, expr: &Expr) -> EvalResult {
        fn eval_nested(
            run: &Evaluation<'_>,
            rest: &mut dyn Iterator<Item = (&String, &Value)>,
            outer: Option<&Frame<'_>>,
            sensitive: bool,
            expr: &Expr,
        ) -> EvalResult {
            match rest.next() {
                None => run.eval(expr, outer),
                Some((name, value)) => {
                    let frame = Frame { name, value, sensitive, outer };
                    eval_nested(run, rest, Some(&frame), sensitive, expr)
                }
            }
        }
        // Each name takes one stack frame.
        const NAMES_MAX: usize = 100;
        if vars.len() > NAMES_MAX {
            let detail = format!("A template takes at most {NAMES_MAX} names.");
            return Err(EvalError::new(expr.span, ProblemCode::LimitExceeded, detail));
        }
        eval_nested(self, &mut vars.iter(), None, sensitive, expr)
    }
}

/// The error of a call of `templatefile`, at its first argument.
fn template_fault(call: &Call, why: &str) -> Box<EvalError> {
    let detail = format!("Call to function \"templatefile\" failed: {why}.");
    EvalError::new(call.args[0].span, ProblemCode::FunctionCall, detail)
}

fn check_count(call: &Call, got: usize, min: usize, max: usize) -> EvalResult<()> {
    if (min..=max).contains(&got) {
        return Ok(());
    }
    let wants = match (min, max) {
        (_, usize::MAX) => format!("at least {min}"),
        (min, max) if min == max => min.to_string(),
        _ => format!("{min} to {max}"),
    };
    let detail = format!("The function {:?} takes {wants} arguments, not {got}.", call.name);
    Err(EvalError::new(call.name_span, ProblemCode::FunctionCall, detail))
}

fn unknown_function(call: &Call) -> Box<EvalError> {
    let detail = format!("There is no function named {:?}.", call.name);
    let fault = EvalError::new(call.name_span, ProblemCode::UnknownFunction, detail);
    let names = functions::FUNCTIONS.iter().map(|function| function.name);
    let help = match call.name.as_str() {
        "timestamp" | "uuid" | "bcrypt" | "plantimestamp" => {
            "a configuration must have the same meaning on every read; pass the value as a variable"
                .to_owned()
        }
        name => match nearest_name(name, names.chain(functions::SPECIAL)) {
            Some(near) => format!("did you mean {near:?}?"),
            None => return fault,
        },
    };
    fault.help(help)
}
