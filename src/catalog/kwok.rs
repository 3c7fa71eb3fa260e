//! Reads instance types in the format of Karpenter's kwok provider (`instance_types.json`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::catalog::{Catalog, CatalogError, instance_type, type_labels};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{CapacityType, InstanceType, Offering, Price};
use crate::model::labels;
use crate::model::quantity::Resources;
use crate::model::requirement::{Requirement, Requirements};
use crate::model::reservation::Reservation;

/// Common prefix of the kwok provider's labels.
const PREFIX: &str = "karpenter.kwok.sh/";
/// Maximum number of pods for types without a value: the default of Kubernetes.
const DEFAULT_PODS: i64 = 110;
/// Resources that the kwok provider reserves on a node.
const RESERVED: Resources = Resources {
    cpu_milli: 100,
    memory: 10 << 20,
    ephemeral_storage: 0,
    pods: 0,
    extended: BTreeMap::new(),
};

#[derive(Deserialize)]
struct RawType {
    name: String,
    architecture: String,
    #[serde(rename = "operatingSystems")]
    operating_systems: Vec<String>,
    resources: BTreeMap<String, Value>,
    offerings: Vec<RawOffering>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawOffering {
    price: f64,
    #[serde(default = "default_available")]
    available: bool,
    requirements: Vec<RawRequirement>,
    /// Number of reserved instances.
    #[serde(default)]
    reservation_capacity: u32,
}

#[derive(Deserialize)]
struct RawRequirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

fn default_available() -> bool {
    true
}

/// Parses a list of instance types. The types have no labels except those that follow from the
/// list.
pub fn parse_kwok_json(text: &str) -> Result<Catalog, CatalogError> {
    let raw: Vec<RawType> = serde_json::from_str(text).map_err(CatalogError::Json)?;
    let mut types = Vec::with_capacity(raw.len());
    let mut seen = BTreeSet::new();
    for raw in &raw {
        if !seen.insert(raw.name.as_str()) {
            let name = raw.name.clone();
            return Err(CatalogError::RepeatedType { name });
        }
        types.push(read_type(raw)?);
    }
    if types.is_empty() {
        return Err(CatalogError::Empty);
    }
    Ok(Catalog::new(types))
}

fn type_error(raw: &RawType, place: &str, text: impl Into<String>) -> CatalogError {
    CatalogError::Type { name: raw.name.clone(), place: place.to_owned(), text: text.into() }
}

fn read_type(raw: &RawType) -> Result<InstanceType, CatalogError> {
    if raw.name.is_empty() {
        let text = "is empty; give every type a name of its own";
        return Err(type_error(raw, "name", text));
    }
    let mut capacity = Resources { pods: DEFAULT_PODS, ..Resources::default() };
    for (name, quantity) in &raw.resources {
        let place = format!("resources.{name}");
        let text = quantity_text(quantity)
            .ok_or_else(|| type_error(raw, &place, "is no quantity; write it like \"4Gi\""))?;
        let set = capacity.set_quantity(name, &text);
        set.map_err(|fault| type_error(raw, &place, fault.to_string()))?;
        if capacity.get(name) < 0 {
            return Err(type_error(raw, &place, "is negative"));
        }
    }
    for needed in ["cpu", "memory"] {
        if capacity.get(needed) == 0 {
            let place = format!("resources.{needed}");
            return Err(type_error(raw, &place, "is missing; a node needs some"));
        }
    }
    let mut allocatable = capacity.clone();
    allocatable.subtract(&RESERVED);
    let mut offerings = Vec::with_capacity(raw.offerings.len());
    for (place, offering) in raw.offerings.iter().enumerate() {
        let place = format!("offerings[{place}]");
        offerings.push(read_offering(raw, &place, offering)?);
    }
    instance_type::sort_offerings(&mut offerings);
    let keys: BTreeSet<_> = offerings.iter().map(|it| it.key(&TypeName::default())).collect();
    if keys.len() < offerings.len() {
        let text = "name one zone, capacity type and reservation twice; keep one of them";
        return Err(type_error(raw, "offerings", text));
    }
    Ok(InstanceType {
        name: TypeName::from(raw.name.as_str()),
        requirements: type_requirements(raw, &offerings),
        capacity,
        allocatable,
        offerings,
    })
}

/// Kubernetes accepts quantities as strings and as plain numbers.
fn quantity_text(quantity: &Value) -> Option<String> {
    match quantity {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the value of the only requirement on a label.
fn single_value<'a>(
    raw: &RawType,
    place: &str,
    offering: &'a RawOffering,
    key: &str,
) -> Result<&'a str, CatalogError> {
    let mut named =
        offering.requirements.iter().filter(|it| labels::normalized_key(&it.key) == key);
    match (named.next(), named.next()) {
        (Some(it), None) if it.operator == "In" && it.values.len() == 1 => {
            Ok(it.values[0].as_str())
        }
        _ => {
            let text = format!("wants one requirement on {key}, In a single value");
            Err(type_error(raw, place, text))
        }
    }
}

fn read_offering(
    raw: &RawType,
    place: &str,
    offering: &RawOffering,
) -> Result<Offering, CatalogError> {
    let spelling = single_value(raw, place, offering, labels::CAPACITY_TYPE)?;
    let capacity_type = CapacityType::parse(spelling).ok_or_else(|| {
        let names = CapacityType::NAMES.join(", ");
        let text = format!("has capacity type {spelling:?}; known are {names}");
        type_error(raw, place, text)
    })?;
    let price = Price::new(offering.price)
        .ok_or_else(|| type_error(raw, place, format!("has the price {}", offering.price)))?;
    let reservation = match capacity_type {
        CapacityType::Reserved => {
            let id = single_value(raw, place, offering, labels::RESERVATION_ID)?;
            let reservation = Reservation::new(id, offering.reservation_capacity);
            Some(Box::new(reservation))
        }
        CapacityType::Spot | CapacityType::OnDemand => None,
    };
    Ok(Offering {
        zone: Zone::from(single_value(raw, place, offering, labels::ZONE)?),
        capacity_type,
        price,
        available: offering.available,
        reservation,
    })
}

fn type_requirements(raw: &RawType, offerings: &[Offering]) -> Requirements {
    let mut all = Requirements::default();
    let [cpu, memory] = ["cpu", "memory"].map(|name| {
        let quantity = raw.resources.get(name).and_then(quantity_text);
        quantity.unwrap_or_default()
    });
    all.add(labels::INSTANCE_TYPE, Requirement::is_in([&*raw.name]));
    all.add(labels::ARCH, Requirement::is_in([&*raw.architecture]));
    for (name, value) in [
        ("cpu", cpu.as_str()),
        ("memory", &memory),
        ("family", family_of_name(&raw.name)),
        ("size", size_of_name(&raw.name).unwrap_or(&cpu)),
    ] {
        let key = format!("{PREFIX}instance-{name}");
        all.add(&key, Requirement::is_in([value]));
    }
    let systems = raw.operating_systems.iter().cloned();
    all.add(labels::OS, Requirement::is_in(systems));
    type_labels::complete_labels(&mut all, offerings);
    all
}

/// Returns the part of a name before the first dot or dash. Without either, returns the first
/// letter of the name.
fn family_of_name(name: &str) -> &str {
    match name.split_once(['.', '-']) {
        Some((family, _)) => family,
        None => name.char_indices().nth(1).map_or(name, |(end, _)| &name[..end]),
    }
}

/// Returns the size in a type name with AWS's format `family.size`. The size of other types is
/// their number of cores.
fn size_of_name(name: &str) -> Option<&str> {
    let (family, size) = name.split_once('.')?;
    let plain = family.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let known = match size.strip_suffix("xlarge") {
        Some(times) => times.chars().all(|c| c.is_ascii_digit()),
        None => matches!(size, "nano" | "micro" | "small" | "medium" | "large" | "metal"),
    };
    (plain && !family.is_empty() && known).then_some(size)
}
