//! Reads EC2 instance types from a table of comma-separated values. Columns are identified by name.
//!
//! Lines that start with `#` are comments. Quoting is not supported. There are two formats: the
//! compact format of the shipped table, and the wide format from which it is generated. The wide
//! format counts the network interfaces of all cards (`enis`, `network_cards`), and the compact
//! format those of the default card (`card_enis`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalog::instance_type_info::{Gpu, InstanceTypeSpec, Neuron};
use crate::catalog::region::{PriceSource, Region};
use crate::catalog::{Catalog, CatalogError, SHIPPED, SHIPPED_MONTH, SHIPPED_REGION};
use crate::model::id::{TypeName, Zone};
use crate::model::instance::{Arch, Price};

/// Required columns. `enis` may replace `card_enis`.
const REQUIRED: [&str; 7] =
    ["type", "arch", "vcpu", "memory_mib", "ips_per_eni", "on_demand_usd_per_h", "zones"];
/// Optional columns. Values of a missing column are unknown.
const OPTIONAL: [&str; 23] = [
    "cpu_manufacturer",
    "clock_mhz",
    "hypervisor",
    "spot",
    "card_enis",
    "enis",
    "network_cards",
    "efa_max",
    "branch_enis",
    "network_mbps",
    "ebs_mbps",
    "ebs_by_default",
    "nvme_gb",
    "nvme",
    "encryption_in_transit",
    "gpu_name",
    "gpu_manufacturer",
    "gpu_count",
    "gpu_memory_mib",
    "accelerator_name",
    "neuron_devices",
    "neuron_cores",
    "bare_metal",
];
/// Redundant columns of the wide format.
const UNUSED: [&str; 4] =
    ["current_generation", "trunking", "accelerator_manufacturer", "accelerator_count"];

const WHOLE: &str = "a whole number";
const POSITIVE: &str = "a whole number of 1 or more";
const FLAG: &str = "0 or 1";

/// Parses a table of the instance types of a region.
pub fn parse_csv(text: &str, region: &str) -> Result<Catalog, CatalogError> {
    Ok(parse_region(text, region, PriceSource::Table)?.catalog())
}

/// Parses a table of the offerings of EC2 in a region. Their price source is `source`.
pub fn parse_region(text: &str, name: &str, source: PriceSource) -> Result<Region, CatalogError> {
    let mut lines = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let (line, header) = lines.next().ok_or(CatalogError::Empty)?;
    let header = read_header(line, header)?;
    let mut region = Region::new(name, source);
    let mut seen = BTreeMap::new();
    for (line, text) in lines {
        let row = CsvRow::new(&header, line, text)?;
        let shape = read_shape(&row)?;
        if let Some(first) = seen.insert(shape.name.clone(), line) {
            let name = shape.name;
            let text = format!("type {name} is on line {first} already; remove one");
            return Err(CatalogError::Line { line, text });
        }
        let type_name = TypeName::from(shape.name.as_str());
        if let Some(price) = read_price(&row)? {
            region.list.insert(type_name.clone(), price);
        }
        let zones = read_zones(&row, name)?;
        region.sold.insert(type_name.clone(), zones.into_iter().collect());
        region.shapes.insert(type_name, Arc::new(shape));
    }
    if region.shapes.is_empty() {
        return Err(CatalogError::Empty);
    }
    Ok(region)
}

impl Region {
    /// Returns the shipped region. Every call parses the table again, so callers should keep the
    /// result.
    pub fn shipped() -> Self {
        let source = PriceSource::Shipped { month: SHIPPED_MONTH, region: SHIPPED_REGION };
        let read = parse_region(SHIPPED, SHIPPED_REGION, source);
        read.expect("the shipped table was read by a test")
    }
}

/// Returns the region in the comment `# region: NAME`.
pub fn region_comment(text: &str) -> Option<&str> {
    text.lines()
        .take_while(|line| line.starts_with('#'))
        .find_map(|line| line.strip_prefix("# region:"))
        .map(str::trim)
        .filter(|region| !region.is_empty())
}

/// The position of each column by its name, and the number of columns.
struct Header<'a> {
    places: BTreeMap<&'a str, usize>,
    width: usize,
}

fn read_header(line: usize, text: &str) -> Result<Header<'_>, CatalogError> {
    let mut places = BTreeMap::new();
    for (place, name) in text.split(',').enumerate() {
        let column = name.trim();
        let known = REQUIRED.iter().chain(&OPTIONAL).chain(&UNUSED).any(|known| *known == column);
        if !known {
            let text = format!("column {column:?} is not known; correct its name or remove it");
            return Err(CatalogError::Line { line, text });
        }
        if places.insert(column, place).is_some() {
            let text = format!("column {column} is there twice; remove one");
            return Err(CatalogError::Line { line, text });
        }
    }
    let has_enis = places.contains_key("card_enis") || places.contains_key("enis");
    let missing = REQUIRED
        .into_iter()
        .find(|column| !places.contains_key(column))
        .or((!has_enis).then_some("card_enis"));
    if let Some(column) = missing {
        let text = format!("there is no column {column}; add it to the header and to every line");
        return Err(CatalogError::Line { line, text });
    }
    let width = places.len();
    Ok(Header { places, width })
}

/// One line of the table.
struct CsvRow<'a> {
    header: &'a Header<'a>,
    line: usize,
    fields: Vec<&'a str>,
}

impl<'a> CsvRow<'a> {
    fn new(header: &'a Header<'a>, line: usize, text: &'a str) -> Result<Self, CatalogError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() != header.width {
            let (found, expected) = (fields.len(), header.width);
            let text = format!(
                "{found} fields where the header has {expected}; fields are separated by commas \
                 and cannot be quoted"
            );
            return Err(CatalogError::Line { line, text });
        }
        Ok(Self { header, line, fields })
    }

    /// Returns the value of a column. Empty if the table does not have the column.
    fn field_text(&self, column: &'static str) -> &'a str {
        let place = self.header.places.get(column);
        place.map_or("", |place| self.fields[*place])
    }

    /// Returns the value of a column, or `None` if the value is empty.
    fn optional_text(&self, column: &'static str) -> Option<String> {
        let text = self.field_text(column);
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn value_error(&self, column: &'static str, expected: &'static str) -> CatalogError {
        CatalogError::Value {
            line: self.line,
            column,
            text: self.field_text(column).chars().take(40).collect(),
            expected,
        }
    }

    fn optional_number(&self, column: &'static str) -> Result<Option<u32>, CatalogError> {
        match self.field_text(column) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| self.value_error(column, WHOLE)),
        }
    }

    fn positive_number(&self, column: &'static str) -> Result<u32, CatalogError> {
        self.optional_number(column)?
            .filter(|number| *number > 0)
            .ok_or_else(|| self.value_error(column, POSITIVE))
    }

    fn optional_flag(&self, column: &'static str) -> Result<Option<bool>, CatalogError> {
        match self.field_text(column) {
            "" => Ok(None),
            "0" => Ok(Some(false)),
            "1" => Ok(Some(true)),
            _ => Err(self.value_error(column, FLAG)),
        }
    }
}

fn read_shape(row: &CsvRow<'_>) -> Result<InstanceTypeSpec, CatalogError> {
    let arch = match row.field_text("arch") {
        "amd64" | "x86_64" | "i386/x86_64" => Arch::Amd64,
        "arm64" => Arch::Arm64,
        _ => return Err(row.value_error("arch", "amd64, x86_64, i386/x86_64 or arm64")),
    };
    let has_hypervisor = row.header.places.contains_key("hypervisor");
    let name = row.optional_text("type").ok_or_else(|| row.value_error("type", "a name"))?;

    let by_default = row.optional_flag("ebs_by_default")?.unwrap_or(true);
    Ok(InstanceTypeSpec {
        spot: row.optional_flag("spot")?.unwrap_or(false),
        bare_metal: row.optional_flag("bare_metal")?.unwrap_or_else(|| name.contains(".metal")),
        cpu_manufacturer: row.optional_text("cpu_manufacturer"),
        clock_mhz: row.optional_number("clock_mhz")?,
        hypervisor: has_hypervisor.then(|| row.field_text("hypervisor").to_owned()),
        card_enis: read_card_enis(row)?,
        ips_per_eni: row.positive_number("ips_per_eni")?,
        efa_max: row.optional_number("efa_max")?.unwrap_or(0),
        branch_enis: row.optional_number("branch_enis")?.unwrap_or(0),
        network_mbps: row.optional_number("network_mbps")?,
        ebs_mbps: row.optional_number("ebs_mbps")?.filter(|_| by_default),
        disk_gb: row.optional_number("nvme_gb")?,
        nvme: row.optional_flag("nvme")?.unwrap_or(true),
        encryption_in_transit: row.optional_flag("encryption_in_transit")?,
        gpus: read_gpu(row)?.into_iter().collect(),
        neurons: read_neuron(row)?.into_iter().collect(),
        ..InstanceTypeSpec::new(
            &name,
            arch,
            row.positive_number("vcpu")?,
            row.positive_number("memory_mib")?,
        )
    })
}

/// Returns the number of network interfaces of the default card. If the table has only the total of
/// all cards, all cards are assumed to have the same number of interfaces. For the few types whose
/// second card has no interfaces, the result is too low, but never too high.
fn read_card_enis(row: &CsvRow<'_>) -> Result<u32, CatalogError> {
    if row.header.places.contains_key("card_enis") {
        return row.positive_number("card_enis");
    }
    let enis = row.positive_number("enis")?;
    let cards = match row.optional_number("network_cards")? {
        None => 1,
        Some(_) => row.positive_number("network_cards")?,
    };
    Ok((enis / cards).max(1))
}

fn read_gpu(row: &CsvRow<'_>) -> Result<Option<Gpu>, CatalogError> {
    let count = row.optional_number("gpu_count")?;
    let memory_mib = row.optional_number("gpu_memory_mib")?;
    let Some(name) = row.optional_text("gpu_name") else {
        return match count {
            Some(_) => Err(row.value_error("gpu_name", "a name, since there is a gpu_count")),
            None => Ok(None),
        };
    };
    Ok(Some(Gpu {
        name,
        manufacturer: row.field_text("gpu_manufacturer").to_owned(),
        count: count.ok_or_else(|| row.value_error("gpu_count", WHOLE))?,
        memory_mib: memory_mib.ok_or_else(|| row.value_error("gpu_memory_mib", WHOLE))?,
    }))
}

fn read_neuron(row: &CsvRow<'_>) -> Result<Option<Neuron>, CatalogError> {
    let Some(devices) = row.optional_number("neuron_devices")? else {
        return Ok(None);
    };
    Ok(Some(Neuron {
        name: row.optional_text("accelerator_name"),
        devices,
        cores: row
            .optional_number("neuron_cores")?
            .ok_or_else(|| row.value_error("neuron_cores", WHOLE))?,
    }))
}

/// Returns the list price. `None` if the field is empty.
fn read_price(row: &CsvRow<'_>) -> Result<Option<Price>, CatalogError> {
    const COLUMN: &str = "on_demand_usd_per_h";
    match row.field_text(COLUMN) {
        "" => Ok(None),
        text => text
            .parse()
            .ok()
            .and_then(Price::new)
            .map(Some)
            .ok_or_else(|| row.value_error(COLUMN, "US dollars per hour, or nothing")),
    }
}

/// Returns the zones. The table contains only the letter that follows the region in the name of a
/// zone.
fn read_zones(row: &CsvRow<'_>, region: &str) -> Result<Vec<Zone>, CatalogError> {
    let letters = row.field_text("zones");
    let distinct: BTreeSet<char> = letters.chars().collect();
    let fine = letters.chars().all(|c| c.is_ascii_lowercase()) && distinct.len() == letters.len();
    if !fine {
        return Err(row.value_error("zones", "the letters of its zones, each once, like abd"));
    }
    let zones = distinct.into_iter();
    Ok(zones.map(|c| Zone::from(format!("{region}{c}"))).collect())
}
