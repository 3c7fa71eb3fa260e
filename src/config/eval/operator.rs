//! Binary operators.

use hcl::{Number, Value};
use hcl_edit::expr::BinaryOperator;
use thiserror::Error;

use super::{EvalError, EvalResult, Evaluation, Frame};
use crate::config::diagnostic::ProblemCode;
use crate::config::source::Span;
use crate::config::syntax::Expr;

impl Evaluation<'_> {
    pub(super) fn eval_binary(
        &self,
        left: &Expr,
        operator: BinaryOperator,
        right: &Expr,
        span: Span,
        frame: Option<&Frame<'_>>,
    ) -> EvalResult {
        Ok(match operator {
            BinaryOperator::And => {
                Value::Bool(self.eval_bool(left, frame)? && self.eval_bool(right, frame)?)
            }
            BinaryOperator::Or => {
                Value::Bool(self.eval_bool(left, frame)? || self.eval_bool(right, frame)?)
            }
            BinaryOperator::Eq => Value::Bool(self.eval(left, frame)? == self.eval(right, frame)?),
            BinaryOperator::NotEq => {
                Value::Bool(self.eval(left, frame)? != self.eval(right, frame)?)
            }
            _ => {
                let (one, other) =
                    (self.eval_number(left, frame)?, self.eval_number(right, frame)?);
                calculate(operator, one, other).map_err(|error| {
                    EvalError::new(span, ProblemCode::Evaluation, error.to_string())
                })?
            }
        })
    }
}

/// Why an operator has no result.
#[derive(Debug, Error)]
enum ArithmeticError {
    #[error("A number cannot be divided by zero.")]
    DivisionByZero,
    #[error("The result is not a finite number.")]
    NotFinite,
}

/// The integer value of a number, if it has one.
fn integer_value(number: &Number) -> Option<i128> {
    let signed = number.as_i64().map(i128::from);
    signed.or_else(|| number.as_u64().map(i128::from))
}

/// The result of an operator on two numbers: an integer if possible.
fn calculate(
    operator: BinaryOperator,
    one: Number,
    other: Number,
) -> Result<Value, ArithmeticError> {
    let (a, b) = (one.as_f64().unwrap_or_default(), other.as_f64().unwrap_or_default());
    let integers = integer_value(&one).zip(integer_value(&other));
    let order = integers.map_or_else(|| a.partial_cmp(&b), |(a, b)| Some(a.cmp(&b)));
    let result = match operator {
        BinaryOperator::Less => return Ok(Value::Bool(order.is_some_and(|o| o.is_lt()))),
        BinaryOperator::LessEq => return Ok(Value::Bool(order.is_some_and(|o| o.is_le()))),
        BinaryOperator::Greater => return Ok(Value::Bool(order.is_some_and(|o| o.is_gt()))),
        BinaryOperator::GreaterEq => return Ok(Value::Bool(order.is_some_and(|o| o.is_ge()))),
        BinaryOperator::Div | BinaryOperator::Mod if b == 0.0 => {
            return Err(ArithmeticError::DivisionByZero);
        }
        BinaryOperator::Plus => (integers.and_then(|(a, b)| a.checked_add(b)), a + b),
        BinaryOperator::Minus => (integers.and_then(|(a, b)| a.checked_sub(b)), a - b),
        BinaryOperator::Mul => (integers.and_then(|(a, b)| a.checked_mul(b)), a * b),
        BinaryOperator::Div => (integers.filter(|(a, b)| a % b == 0).map(|(a, b)| a / b), a / b),
        BinaryOperator::Mod => (integers.map(|(a, b)| a % b), a % b),
        _ => (None, f64::NAN),
    };
    let integer = result.0.and_then(|integer| {
        let small = i64::try_from(integer).ok().map(Number::from);
        small.or_else(|| u64::try_from(integer).ok().map(Number::from))
    });
    integer
        .or_else(|| Number::from_f64(result.1))
        .map(Value::Number)
        .ok_or(ArithmeticError::NotFinite)
}
