//! Evaluates expressions, one node at a time, so that an error points at the smallest invalid
//! expression.
//!
//! The evaluator of hcl-rs is not used: it has no spans, evaluates the arguments of `try` before
//! the call, and its arithmetic panics on overflow.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use hcl::{Map, Number, Value};

use crate::config::diagnostic::ProblemCode;
use crate::config::functions::Environment;
use crate::config::secrets::SecretTexts;
use crate::config::source::Span;
use crate::config::syntax::{Expr, ExprKind, For, ForPart, TemplatePart};
use crate::config::value::{self, elements, quote_value, type_name};

// Binary operators.
mod operator;
// References, attribute and index access.
mod path;
// Function calls, `try` and `can`.
mod call;

/// An evaluation error, with its span.
#[derive(Clone, Debug)]
pub(super) struct EvalError {
    pub(super) span: Span,
    pub(super) code: ProblemCode,
    pub(super) detail: String,
    pub(super) label: String,
    pub(super) help: Option<String>,
    /// Names in the expression and their values.
    pub(super) values: Vec<(String, String)>,
    /// True if a different diagnostic already reports the cause.
    pub(super) silent: bool,
    /// True if `values` is complete.
    pub(super) noted: bool,
}

impl EvalError {
    pub(super) fn new(span: Span, code: ProblemCode, detail: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            span,
            code,
            detail: detail.into(),
            label: String::new(),
            help: None,
            values: Vec::new(),
            silent: false,
            noted: false,
        })
    }

    /// An error that follows from an error reported elsewhere.
    fn already_reported(span: Span) -> Box<Self> {
        let mut fault = Self::new(span, ProblemCode::Evaluation, "");
        fault.silent = true;
        fault
    }

    fn help(mut self: Box<Self>, help: impl Into<String>) -> Box<Self> {
        self.help = Some(help.into());
        self
    }

    fn label(mut self: Box<Self>, label: impl Into<String>) -> Box<Self> {
        self.label = label.into();
        self
    }
}

type EvalResult<T = Value> = Result<T, Box<EvalError>>;

/// A named value.
#[derive(Clone, Debug)]
pub(super) struct NamedValue {
    pub(super) value: Value,
    pub(super) sensitive: bool,
}

impl NamedValue {
    /// A value that is not sensitive.
    pub(super) fn not_sensitive(value: Value) -> Self {
        Self { value, sensitive: false }
    }
}

/// The named values an expression may use: for each first name (`var`), each second name with its
/// value. The value is `None` if its evaluation failed.
#[derive(Debug, Default)]
pub(super) struct EvalScope {
    pub(super) roots: BTreeMap<&'static str, BTreeMap<String, Option<NamedValue>>>,
}

impl EvalScope {
    /// Checks that `root.name` is declared.
    pub(super) fn check_declared(&self, root: &str, name: &str, span: Span) -> EvalResult<()> {
        match self.roots.get(root) {
            Some(names) if !names.contains_key(name) => {
                Err(path::unknown_name(root, name, span, names))
            }
            _ => Ok(()),
        }
    }
}

/// A name defined by a `for`, by `each` or by `templatefile`, linked to the outer names.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) name: &'a str,
    pub(super) value: &'a Value,
    pub(super) sensitive: bool,
    pub(super) outer: Option<&'a Frame<'a>>,
}

/// Step limit of the evaluation of a configuration: one step for each node, plus the size of each
/// value created or copied. The largest test fleets take a few hundred thousand.
const STEPS_MAX: u64 = 4_000_000;
/// Maximum nesting of lists and maps in a named value.
pub(super) const DEPTH_MAX: usize = 64;

/// Evaluates the expressions of one configuration.
pub(super) struct Evaluator<'a> {
    pub(super) environment: Environment<'a>,
    /// The sensitive values found so far.
    pub(super) secrets: SecretTexts,
    steps: Cell<u64>,
    /// Names of sensitive Terraform outputs, which are omitted. The error of a reference to an
    /// omitted output gets a hint.
    left_out: RefCell<BTreeSet<String>>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(environment: Environment<'a>) -> Self {
        Self {
            environment,
            secrets: SecretTexts::default(),
            steps: Cell::new(0),
            left_out: RefCell::default(),
        }
    }

    /// Adds names of omitted outputs.
    pub(super) fn leave_out(&self, names: impl IntoIterator<Item = String>) {
        self.left_out.borrow_mut().extend(names);
    }

    /// Evaluates an expression and returns whether the value is sensitive.
    pub(super) fn evaluate(
        &self,
        expr: &Expr,
        scope: &EvalScope,
        frame: Option<&Frame<'_>>,
    ) -> EvalResult<NamedValue> {
        let run = Evaluation {
            evaluator: self,
            scope,
            sensitive: Cell::new(false),
            quiet: false,
            templates: 0,
        };
        let outcome = run.eval(expr, frame);
        let sensitive = run.sensitive.get();
        match outcome {
            Ok(value) if value::nesting_depth(&value) > DEPTH_MAX => {
                let detail = format!("The value has more than {DEPTH_MAX} nested levels.");
                Err(EvalError::new(expr.span, ProblemCode::LimitExceeded, detail))
            }
            Ok(value) => Ok(NamedValue { value, sensitive }),
            Err(mut fault) => {
                if sensitive {
                    fault.values.clear();
                    if matches!(fault.code, ProblemCode::Evaluation | ProblemCode::FunctionCall) {
                        fault.detail = "The expression cannot be evaluated. The cause is not \
                                        shown, because it contains a sensitive value."
                            .to_owned();
                        fault.label = String::new();
                        fault.help = None;
                    }
                }
                Err(fault)
            }
        }
    }
}

/// The evaluation of one expression.
struct Evaluation<'a> {
    evaluator: &'a Evaluator<'a>,
    scope: &'a EvalScope,
    /// True if a sensitive value has been read.
    sensitive: Cell<bool>,
    /// True if errors do not need the values of names.
    quiet: bool,
    /// Number of template files being rendered.
    templates: usize,
}

/// Evaluates the body of a `for` expression for one element.
type FrameBody<'a> = dyn FnMut(Option<&Frame<'_>>) -> EvalResult<()> + 'a;

impl Evaluation<'_> {
    fn charge_cost(&self, span: Span, cost: u64) -> EvalResult<()> {
        let steps = self.evaluator.steps.get();
        let sum = steps.saturating_add(cost);
        self.evaluator.steps.set(sum);
        if sum <= STEPS_MAX {
            return Ok(());
        }
        // Errors after the first one over the limit are consequences of it.
        if steps > STEPS_MAX {
            return Err(EvalError::already_reported(span));
        }
        let detail = format!("Evaluating the configuration takes more than {STEPS_MAX} steps.");
        Err(EvalError::new(span, ProblemCode::LimitExceeded, detail)
            .label("the limit is reached here")
            .help("look for nested `for` expressions, or a value that doubles repeatedly"))
    }

    fn eval(&self, expr: &Expr, frame: Option<&Frame<'_>>) -> EvalResult {
        self.charge_cost(expr.span, 1)?;
        let before = self.sensitive.replace(false);
        let outcome = self.eval_node(expr, frame);
        // Parts of lists and maps are checked one by one: not all of them are sensitive.
        if self.sensitive.get()
            && !matches!(expr.kind, ExprKind::List(_) | ExprKind::Object(_))
            && let Ok(value) = &outcome
        {
            self.evaluator.secrets.add_values(value);
        }
        self.sensitive.set(before || self.sensitive.get());
        outcome.map_err(|mut fault| {
            if !fault.noted && !self.quiet && !fault.silent {
                fault.noted = true;
                fault.values = self.value_notes(expr, frame);
            }
            fault
        })
    }

    fn eval_node(&self, expr: &Expr, frame: Option<&Frame<'_>>) -> EvalResult {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Literal(literal) => {
                self.charge_cost(span, value::copy_cost(literal))?;
                Ok(literal.clone())
            }
            ExprKind::List(items) => {
                let items = items.iter().map(|item| self.eval(item, frame));
                Ok(Value::Array(items.collect::<Result<_, _>>()?))
            }
            ExprKind::Object(items) => self.eval_object(items, frame),
            ExprKind::Template(parts) => {
                let mut out = String::new();
                self.render_template(parts, span, frame, &mut out)?;
                Ok(Value::String(out))
            }
            ExprKind::Variable(_) => self.eval_path(expr, &[], span, frame),
            ExprKind::Traversal(base, steps) => self.eval_path(base, steps, span, frame),
            ExprKind::Call(call) => self.eval_call(call, span, frame),
            ExprKind::Not(inner) => Ok(Value::Bool(!self.eval_bool(inner, frame)?)),
            ExprKind::Negate(inner) => Ok(Value::Number(-self.eval_number(inner, frame)?)),
            ExprKind::Binary(sides) => self.eval_binary(&sides.0, sides.1, &sides.2, span, frame),
            ExprKind::Conditional(three) => {
                let chosen = if self.eval_bool(&three.0, frame)? { &three.1 } else { &three.2 };
                self.eval(chosen, frame)
            }
            ExprKind::For(for_expr) => self.for_each(for_expr, frame),
        }
    }

    fn eval_bool(&self, expr: &Expr, frame: Option<&Frame<'_>>) -> EvalResult<bool> {
        let got = self.eval(expr, frame)?;
        value::to_bool(&got).ok_or_else(|| type_error(expr, "true or false", &got))
    }

    fn eval_number(&self, expr: &Expr, frame: Option<&Frame<'_>>) -> EvalResult<Number> {
        let got = self.eval(expr, frame)?;
        value::to_number(&got).ok_or_else(|| type_error(expr, "a number", &got))
    }

    fn eval_key(&self, expr: &Expr, frame: Option<&Frame<'_>>) -> EvalResult<String> {
        let got = self.eval(expr, frame)?;
        value::to_text(&got).ok_or_else(|| type_error(expr, "a string as key", &got))
    }

    fn eval_object(&self, items: &[(Expr, Expr)], frame: Option<&Frame<'_>>) -> EvalResult {
        let mut map = Map::with_capacity(items.len());
        for (key, item) in items {
            let name = self.eval_key(key, frame)?;
            if map.insert(name.clone(), self.eval(item, frame)?).is_some() {
                let detail = format!("The map has the key {name:?} twice.");
                return Err(EvalError::new(key.span, ProblemCode::Evaluation, detail));
            }
        }
        Ok(Value::Object(map))
    }

    fn render_template(
        &self,
        parts: &[TemplatePart],
        span: Span,
        frame: Option<&Frame<'_>>,
        out: &mut String,
    ) -> EvalResult<()> {
        for part in parts {
            match part {
                TemplatePart::Text(text) => {
                    self.charge_cost(span, 1 + value::text_size(text))?;
                    out.push_str(text);
                }
                TemplatePart::Value(expr) => {
                    let got = self.eval(expr, frame)?;
                    let Some(text) = value::to_text(&got) else {
                        return Err(type_error(expr, "a string, number or bool", &got));
                    };
                    out.push_str(&text);
                }
                TemplatePart::If(three) => {
                    let chosen = if self.eval_bool(&three.0, frame)? { &three.1 } else { &three.2 };
                    self.render_template(chosen, span, frame, out)?;
                }
                TemplatePart::For(for_part) => self.template_for(for_part, span, frame, out)?,
            }
        }
        Ok(())
    }

    fn template_for(
        &self,
        for_part: &ForPart,
        span: Span,
        frame: Option<&Frame<'_>>,
        out: &mut String,
    ) -> EvalResult<()> {
        let (key, value) = (for_part.key_name.as_deref(), &for_part.value_name);
        self.for_elements(&for_part.collection, key, value, frame, &mut |frame| {
            self.render_template(&for_part.parts, span, frame, out)
        })
    }

    /// Calls `body` for each element of a collection, with the names of its key and value in scope.
    fn for_elements(
        &self,
        collection: &Expr,
        key_name: Option<&str>,
        name: &str,
        outer: Option<&Frame<'_>>,
        body: &mut FrameBody<'_>,
    ) -> EvalResult<()> {
        let items = self.eval(collection, outer)?;
        let Some(elements) = elements(&items) else {
            return Err(type_error(collection, "a list or a map to iterate over", &items));
        };
        for (key, value) in elements {
            let sensitive = self.sensitive.get();
            let key_frame = key_name.map(|name| Frame { name, value: &key, sensitive, outer });
            body(Some(&Frame { name, value, sensitive, outer: key_frame.as_ref().or(outer) }))?;
        }
        Ok(())
    }

    fn for_each(&self, for_expr: &For, frame: Option<&Frame<'_>>) -> EvalResult {
        let (mut list, mut map) = (Vec::new(), Map::new());
        let (key, value) = (for_expr.key_name.as_deref(), &for_expr.value_name);
        self.for_elements(&for_expr.collection, key, value, frame, &mut |frame| {
            if let Some(condition) = &for_expr.condition
                && !self.eval_bool(condition, frame)?
            {
                return Ok(());
            }
            let Some(key) = &for_expr.key else {
                list.push(self.eval(&for_expr.value, frame)?);
                return Ok(());
            };
            let name = self.eval_key(key, frame)?;
            let value = self.eval(&for_expr.value, frame)?;
            put_item(&mut map, name, value, for_expr.grouping, key.span)
        })?;
        Ok(if for_expr.key.is_some() { Value::Object(map) } else { Value::Array(list) })
    }
}

fn put_item(
    map: &mut Map<String, Value>,
    name: String,
    value: Value,
    grouping: bool,
    span: Span,
) -> EvalResult<()> {
    if grouping {
        let group = map.entry(name).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(items) = group {
            items.push(value);
        }
        return Ok(());
    }
    if map.contains_key(&name) {
        let detail = format!("Two elements have the key {name:?}.");
        let fault = EvalError::new(span, ProblemCode::Evaluation, detail);
        return Err(fault.help("write ... after the value to collect all values of a key"));
    }
    map.insert(name, value);
    Ok(())
}

fn type_error(expr: &Expr, wants: &str, got: &Value) -> Box<EvalError> {
    let detail = match got {
        Value::Array(_) | Value::Object(_) => {
            format!("This must be {wants}, not {}.", type_name(got))
        }
        _ => format!("This must be {wants}, not {}.", quote_value(got)),
    };
    EvalError::new(expr.span, ProblemCode::Evaluation, detail)
}
