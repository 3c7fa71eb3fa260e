//! On-demand prices that ship for partitions with their own prices.
//!
//! The price list of AWS GovCloud cannot be read, and that of China is in a different currency.

use std::collections::BTreeMap;

use crate::catalog::SHIPPED_MONTH;
use crate::catalog::region::{PriceSource, Region};
use crate::model::id::TypeName;
use crate::model::instance::Price;

/// Prices by type and region. A type that a region does not have has an empty field.
const PRICES: &str = include_str!("ec2-prices-gov-cn.csv");

/// Returns the region whose shipped prices apply to a region: its own, or the most similar one.
fn priced_region(region: &str) -> Option<&'static str> {
    let mut parts = region.split('-');
    match (parts.next()?, parts.next()?) {
        ("cn", _) => Some("cn-north-1"),
        ("us", "gov") if region == "us-gov-east-1" => Some("us-gov-east-1"),
        ("us", "gov") => Some("us-gov-west-1"),
        _ => None,
    }
}

impl Region {
    /// Returns a region without data from EC2, with list prices until its own price list is
    /// available. In most regions these are the prices of the shipped region. In the partitions
    /// with their own prices, the other prices apply only to further types. They are multiplied by
    /// the median ratio of the prices of the common types: an estimate in the currency of the
    /// region, without which these types could not be launched.
    pub fn with_shipped_prices(name: &str, shipped: &Self) -> Self {
        let empty = Self::new(name, shipped.source);
        let Some(region) = priced_region(name) else {
            return Self { list: shipped.list.clone(), ..empty };
        };
        let own = read_prices(region);
        let ratio = median_ratio(&own, &shipped.list);
        let estimates = shipped.list.iter().filter_map(|(name, price)| {
            let estimate = Price::new(price.usd_per_h() * ratio)?;
            (estimate.usd_per_h() > 0.0).then(|| (name.clone(), estimate))
        });
        let mut list: BTreeMap<TypeName, Price> = estimates.collect();
        list.extend(own);
        Self { list, ..Self::new(name, PriceSource::Shipped { month: SHIPPED_MONTH, region }) }
    }
}

/// Returns the median ratio of two prices of the same type. Zero without common types.
fn median_ratio(prices: &BTreeMap<TypeName, Price>, others: &BTreeMap<TypeName, Price>) -> f64 {
    let common = prices.iter().filter_map(|(name, price)| {
        let other = others.get(name).filter(|price| price.usd_per_h() > 0.0)?;
        Some(price.usd_per_h() / other.usd_per_h())
    });
    let mut ratios: Vec<f64> = common.collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(0.0)
}

/// Reads the prices of a region from the shipped table, which a test checks.
fn read_prices(region: &str) -> BTreeMap<TypeName, Price> {
    let mut rows = PRICES.lines().filter(|line| !line.starts_with('#'));
    let column = rows.next().and_then(|row| row.split(',').position(|name| name == region));
    let prices = rows.filter_map(|row| {
        let (name, _) = row.split_once(',')?;
        let price = row.split(',').nth(column?)?.parse().ok().and_then(Price::new)?;
        Some((TypeName::from(name), price))
    });
    prices.collect()
}

#[cfg(test)]
mod tests {
    use super::{PRICES, priced_region, read_prices};
    use crate::catalog::region::{PriceSource, Region, currency};
    use crate::model::id::TypeName;
    use crate::model::instance::Price;

    #[test]
    fn every_shipped_price_is_read() {
        let rows = PRICES.lines().filter(|line| !line.starts_with('#'));
        let fields = rows.skip(1).flat_map(|row| row.split(',').skip(1));
        let filled = fields.filter(|field| !field.is_empty()).count();
        let read = ["cn-north-1", "us-gov-east-1", "us-gov-west-1"].map(|it| read_prices(it).len());
        assert_eq!((read.iter().sum::<usize>(), read), (filled, [316, 549, 770]));
    }

    /// Region; the region of the shipped prices, the least and the greatest ratio of the prices of
    /// further types to those of us-east-1, the price of m5.large, and whether spot prices are
    /// used.
    #[test]
    fn regions_have_the_list_prices_of_their_partition() {
        let shipped = Region::shipped();
        let cases = [
            ("eu-west-1", "us-east-1", (1.0, 1.0), Some(0.096), true),
            ("us-gov-west-1", "us-gov-west-1", (1.1, 1.5), Some(0.121), true),
            ("us-gov-east-1", "us-gov-east-1", (1.1, 1.5), Some(0.121), true),
            ("cn-north-1", "cn-north-1", (6.0, 12.0), Some(1.013), true),
            ("cn-northwest-1", "cn-north-1", (6.0, 12.0), Some(1.013), true),
            ("us-iso-east-1", "us-east-1", (1.0, 1.0), Some(0.096), true),
            ("eusc-de-east-1", "us-east-1", (1.0, 1.0), Some(0.096), false),
        ];
        for (name, of, (least, most), price, is_comparable) in cases {
            let mut region = Region::with_shipped_prices(name, &shipped);
            let PriceSource::Shipped { region: source, .. } = region.source else {
                panic!("{:?}", region.source);
            };
            let own = priced_region(name).map(read_prices).unwrap_or_default();
            let others = shipped.list.iter().filter(|(name, _)| !own.contains_key(*name));
            let ratio = |(name, price): (&TypeName, &Price)| {
                region.list[name].usd_per_h() / price.usd_per_h()
            };
            let mut others = others.map(ratio).peekable();
            assert!(others.peek().is_some());
            assert!(others.all(|ratio| (least..=most).contains(&ratio)), "{name}");
            let listed = region.list.get("m5.large").map(|price| price.usd_per_h());
            assert_eq!((source, listed), (of, price), "{name}");
            let spot = [("m5.large".into(), "zone".into(), region.list["m5.large"])];
            let is_used = region.set_spot_prices(&spot, jiff::Timestamp::UNIX_EPOCH);
            assert_eq!((is_used, region.spot.is_some()), (is_comparable, is_comparable), "{name}");
            // Read prices have the currency of the region.
            region.source = PriceSource::Fetched { at: jiff::Timestamp::UNIX_EPOCH };
            assert!(region.set_spot_prices(&spot, jiff::Timestamp::UNIX_EPOCH));
        }
        assert_eq!(
            ["cn-north-1", "eusc-de-east-1", "us-gov-east-1"].map(currency),
            ["CNY", "EUR", "USD"]
        );
    }
}
