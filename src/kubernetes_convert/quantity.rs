//! Resource quantities in JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, de};

/// Quantities by resource name, not parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quantities(BTreeMap<String, Quantity>);

impl Deref for Quantities {
    type Target = BTreeMap<String, Quantity>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Quantities {
    /// Reads `null` as no quantity.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = BTreeMap::<String, Option<Quantity>>::deserialize(deserializer)?;
        let given = read.into_iter().filter_map(|(name, it)| Some((name, it?)));
        Ok(Self(given.collect()))
    }
}

/// A quantity as written. Files may contain numbers, while the API has only strings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quantity(pub(crate) String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl Visitor<'_> for Read {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Quantity, E> {
                Ok(Quantity(text))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
                Ok(Quantity(number.to_string()))
            }
        }

        deserializer.deserialize_any(Read)
    }
}
