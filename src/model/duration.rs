//! Durations in Go syntax, as in Kubernetes annotations.

use jiff::SignedDuration;

/// Parses a Go duration: `30m`, `1h30m`, `1.5h`, `250ms`, `-2s`, `0`. `None` if it is invalid or
/// above Go's maximum of about 292 years.
pub fn parse_go(text: &str) -> Option<SignedDuration> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if unsigned == "0" {
        return Some(SignedDuration::ZERO);
    }
    let (mut sum, mut remainder) = (0_i64, unsigned);
    while !remainder.is_empty() {
        let number_end = remainder.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = remainder.split_at(number_end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = after.split_at(unit_end.unwrap_or(after.len()));
        sum = sum.checked_add(nanoseconds(number, unit)?)?;
        remainder = after;
    }
    let sum = if text.starts_with('-') { -sum } else { sum };
    (!unsigned.is_empty()).then(|| SignedDuration::from_nanos(sum))
}

fn nanoseconds(number: &str, unit: &str) -> Option<i64> {
    let scale: i64 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole = match whole {
        "" => 0,
        digits => digits.parse::<i64>().ok()?,
    };
    let mut sum = whole.checked_mul(scale)?;
    let mut digit_value = scale;
    for digit in fraction.bytes() {
        digit_value /= 10;
        sum = sum.checked_add(i64::from(digit - b'0') * digit_value)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::parse_go;

    #[test]
    fn durations_are_parsed_like_go() {
        let cases = [
            ("30m", Some(1_800_000_000_000)),
            ("1h30m", Some(5_400_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("250ms10us3ns", Some(250_010_003)),
            ("2µs", Some(2_000)),
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-2s", Some(-2_000_000_000)),
            ("+2s", Some(2_000_000_000)),
            ("0.000000000000000000000000001h", Some(0)),
            ("2562047h", Some(9_223_369_200_000_000_000)),
            ("2562048h", None),
            ("99999999999999999999h", None),
            ("1.2.3s", None),
            (".s", None),
            ("10", None),
            ("s", None),
            ("3d", None),
            ("1 h", None),
            ("true", None),
            ("", None),
            ("-", None),
            ("1h-2m", None),
        ];
        for (text, expect) in cases {
            let got = parse_go(text).map(|duration| duration.as_nanos());
            assert_eq!(got, expect, "{text:?}");
        }
    }
}
