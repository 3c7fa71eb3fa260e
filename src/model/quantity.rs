//! Kubernetes quantities as integers, and resource lists of pods and nodes.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

/// Why a string is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct QuantityError(String);

/// Parses a quantity into thousandths of its unit, rounded up as in Kubernetes.
///
/// Grammar: signed decimal number, then a suffix `n u m k M G T P E Ki Mi Gi Ti Pi Ei` or a decimal
/// exponent. Source: Kubernetes, `apimachinery/pkg/api/resource`.
pub fn parse_milli(text: &str) -> Result<i64, QuantityError> {
    parse_scaled(text, 1000)
}

/// Parses a quantity into whole units, rounded up.
pub fn parse_whole(text: &str) -> Result<i64, QuantityError> {
    parse_scaled(text, 1)
}

/// The first 40 characters of a string, for an error message.
pub fn clip_text(text: &str) -> String {
    text.chars().take(40).collect()
}

fn parse_scaled(text: &str, scale: i128) -> Result<i64, QuantityError> {
    let error = |fault: &str| QuantityError(format!("{:?} {fault}", clip_text(text)));
    let malformed = || error("is not a quantity; write it like 500m, 2, 1.5Gi or 2e3");
    let out_of_range = || error("is out of range");
    if text.len() > 40 {
        return Err(malformed());
    }
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa
            .checked_mul(10)
            .and_then(|mantissa| mantissa.checked_add(i128::from(digit - b'0')))
            .ok_or_else(out_of_range)?;
    }
    let (factor, exponent) = suffix_factor(suffix).ok_or_else(malformed)?;
    let exponent = exponent - i32::try_from(fraction.len()).map_err(|_| malformed())?;
    let mut value = mantissa
        .checked_mul(factor)
        .and_then(|value| value.checked_mul(scale))
        .ok_or_else(out_of_range)?;
    if exponent >= 0 {
        let power = 10i128.checked_pow(exponent.unsigned_abs()).ok_or_else(out_of_range)?;
        value = value.checked_mul(power).ok_or_else(out_of_range)?;
    } else {
        // 10^38 is the largest power that an i128 holds. Larger powers round up to one or to zero.
        let power = 10i128.checked_pow(exponent.unsigned_abs()).unwrap_or(i128::MAX);
        value = value / power + i128::from(value % power != 0);
    }
    let value = if negative { -value } else { value };
    i64::try_from(value).map_err(|_| out_of_range())
}

fn suffix_factor(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        other => {
            let power = other.strip_prefix(['e', 'E'])?;
            let power: i32 = power.parse().ok()?;
            (-60..=60).contains(&power).then_some((1, power))?
        }
    })
}

/// Resources that a pod requests, a node has, or a pool may use. Missing resources are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resources {
    /// Processor time, in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory, in bytes.
    pub memory: i64,
    /// Local ephemeral storage, in bytes.
    pub ephemeral_storage: i64,
    /// Number of pods.
    pub pods: i64,
    /// All other resources by Kubernetes name (`nvidia.com/gpu`, `hugepages-2Mi`), in whole units.
    pub extended: BTreeMap<String, i64>,
}

impl Resources {
    /// Sets a resource from its Kubernetes name and quantity.
    pub fn set_quantity(&mut self, name: &str, quantity: &str) -> Result<(), QuantityError> {
        let amount = match name {
            "cpu" => parse_milli(quantity)?,
            _ => parse_whole(quantity)?,
        };
        self.set_amount(name, amount);
        Ok(())
    }

    /// Sets a resource by its Kubernetes name; `cpu` in thousandths.
    pub fn set_amount(&mut self, name: &str, amount: i64) {
        match name {
            "cpu" => self.cpu_milli = amount,
            "memory" => self.memory = amount,
            "ephemeral-storage" => self.ephemeral_storage = amount,
            "pods" => self.pods = amount,
            other => drop(self.extended.insert(other.to_owned(), amount)),
        }
    }

    /// The quantity of a resource by its Kubernetes name; `cpu` in thousandths.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.cpu_milli,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            other => self.extended.get(other).copied().unwrap_or(0),
        }
    }

    /// All non-zero resources by name, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        [
            ("cpu", self.cpu_milli),
            ("memory", self.memory),
            ("ephemeral-storage", self.ephemeral_storage),
            ("pods", self.pods),
        ]
        .into_iter()
        .chain(self.extended.iter().map(|(name, amount)| (name.as_str(), *amount)))
        .filter(|(_, amount)| *amount != 0)
    }

    /// Adds `other`, saturating.
    pub fn add(&mut self, other: &Self) {
        self.combine_with(other, i64::saturating_add);
    }

    /// Subtracts `other`, saturating. Quantities may become negative.
    pub fn subtract(&mut self, other: &Self) {
        self.combine_with(other, i64::saturating_sub);
    }

    /// Raises every quantity to at least that of `other`.
    pub fn raise_to(&mut self, other: &Self) {
        self.combine_with(other, i64::max);
    }

    fn combine_with(&mut self, other: &Self, with: fn(i64, i64) -> i64) {
        self.cpu_milli = with(self.cpu_milli, other.cpu_milli);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = with(self.pods, other.pods);
        for (name, amount) in &other.extended {
            let combined = self.extended.entry(name.clone()).or_insert(0);
            *combined = with(*combined, *amount);
        }
    }

    /// Returns whether these requests fit into the available resources. A missing resource is zero,
    /// and nothing fits if any available resource is negative (Karpenter's rule, spec §2.13).
    pub fn fit_into(&self, available: &Self) -> bool {
        self.first_shortage(available).is_none()
    }

    /// The first insufficient resource by name, in a fixed order.
    pub fn first_shortage<'a>(&'a self, available: &'a Self) -> Option<&'a str> {
        if let Some((name, _)) = available.iter().find(|(_, amount)| *amount < 0) {
            return Some(name);
        }
        self.iter().find(|(name, amount)| *amount > available.get(name)).map(|(name, _)| name)
    }
}

impl fmt::Display for Resources {
    /// Writes `cpu 2.5, memory 4.0Gi, pods 3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, amount) in self.iter() {
            write!(f, "{separator}{name} {}", display_amount(name, amount))?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}

/// Formats a quantity: cores for `cpu`, binary units for bytes.
pub fn display_amount(name: &str, amount: i64) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    const MIB: f64 = (1u64 << 20) as f64;
    #[expect(clippy::cast_precision_loss, reason = "for people, two digits are enough")]
    let float = amount as f64;
    match name {
        "cpu" if amount % 1000 == 0 => format!("{}", amount / 1000),
        "cpu" => format!("{amount}m"),
        "memory" | "ephemeral-storage" if float.abs() >= GIB => format!("{:.1}Gi", float / GIB),
        "memory" | "ephemeral-storage" => format!("{:.0}Mi", float / MIB),
        _ => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Resources, parse_milli, parse_whole};

    #[test]
    fn quantities_are_parsed_like_kubernetes() {
        let cases = [
            ("0", Some(0)),
            ("500m", Some(500)),
            ("2", Some(2000)),
            ("1.5", Some(1500)),
            (".5", Some(500)),
            ("5.", Some(5000)),
            ("1n", Some(1)),
            ("1e3", Some(1_000_000)),
            ("1E3", Some(1_000_000)),
            ("-1", Some(-1000)),
            ("1Ki", Some(1_024_000)),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("1 Gi", None),
            ("Gi", None),
            ("1GI", None),
            ("0x10", None),
            ("9e60", None),
            ("1e99", None),
        ];
        for (text, expect) in cases {
            assert_eq!(parse_milli(text).ok(), expect, "{text:?}");
        }
        assert_eq!(parse_whole("28Gi"), Ok(28 << 30));
        assert_eq!(parse_whole("1E"), Ok(1_000_000_000_000_000_000));
        assert!(parse_whole("100E").is_err());
        assert_eq!(parse_whole("100m"), Ok(1));
    }

    #[test]
    fn requests_fit_only_when_every_resource_does() {
        let mut request = Resources { cpu_milli: 500, memory: 10, ..Resources::default() };
        let available = Resources { cpu_milli: 500, memory: 10, ..Resources::default() };
        assert!(request.fit_into(&available));
        request.extended.insert("nvidia.com/gpu".into(), 1);
        assert_eq!(request.first_shortage(&available), Some("nvidia.com/gpu"));
        let overfull = Resources { pods: -1, ..available };
        assert_eq!(Resources::default().first_shortage(&overfull), Some("pods"));
    }
}
