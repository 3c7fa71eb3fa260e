//! Reads prices: the price list and current spot prices.
//!
//! Source: spec/aws.md §4.8.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::SpotPrice;
use aws_sdk_pricing::types::{Filter, FilterType};
use aws_smithy_types::DateTime;
use serde_json::Value;

use crate::catalog::region;
use crate::host::clock;
use crate::model::id::{TypeName, Zone};
use crate::model::instance::Price;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::paginate;

/// Maximum page size of prices.
const PAGE: i32 = 100;
/// Page size of spot prices.
const SPOT_PAGE: i32 = 1000;
/// Product description of spot prices. EC2-Classic and VPC differ only by name.
const PRODUCTS: [&str; 2] = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"];

/// Prices of virtual and bare metal instances, by type.
pub(crate) type ListPrices = (Vec<(TypeName, Price)>, Vec<(TypeName, Price)>);

/// Reads on-demand prices.
pub(crate) async fn read_list_prices(account: &AwsClients) -> Result<ListPrices, AwsError> {
    let shared = read_prices(account, "Shared", "Compute Instance").await?;
    let metal = read_prices(account, "Dedicated", "Compute Instance (bare metal)").await?;
    Ok((shared, metal))
}

async fn read_prices(
    account: &AwsClients,
    tenancy: &str,
    family: &str,
) -> Result<Vec<(TypeName, Price)>, AwsError> {
    let region = account.key.region.as_str();
    let filters = [
        ("regionCode", region),
        ("serviceCode", "AmazonEC2"),
        ("preInstalledSw", "NA"),
        ("operatingSystem", "Linux"),
        ("capacitystatus", "Used"),
        ("marketoption", "OnDemand"),
        ("tenancy", tenancy),
        ("productFamily", family),
    ];
    let filters = filters.into_iter().filter_map(|(field, value)| {
        let filter = Filter::builder().field(field).value(value);
        filter.r#type(FilterType::TermMatch).build().ok()
    });
    let call = account.pricing.get_products().service_code("AmazonEC2");
    let call = call.set_filters(Some(filters.collect()));
    let pages = call.into_paginator().page_size(PAGE).send();
    let currency = region::currency(region);
    paginate::collect(account, "GetProducts", pages, |page, prices| {
        let products = page.price_list().iter();
        prices.extend(products.filter_map(|text| parse_product(text, currency)));
    })
    .await
}

/// Parses a type and its price from a product of the price list. `None` if either is missing or
/// zero.
fn parse_product(text: &str, currency: &str) -> Option<(TypeName, Price)> {
    let product: Value = serde_json::from_str(text).ok()?;
    let name = product["product"]["attributes"]["instanceType"].as_str()?;
    let terms = product["terms"]["OnDemand"].as_object()?;
    let dimensions = terms.values().next()?["priceDimensions"].as_object()?;
    let price = dimensions.values().next()?["pricePerUnit"][currency].as_str()?;
    let price = price.parse().ok().and_then(Price::new)?;
    (price.usd_per_h() > 0.0).then(|| (TypeName::from(name), price))
}

/// Reads current spot prices, by type and zone.
pub(crate) async fn read_spot_prices(
    account: &AwsClients,
) -> Result<Vec<(TypeName, Zone, Price)>, AwsError> {
    let pages = account
        .ec2
        .describe_spot_price_history()
        .start_time(DateTime::from_secs(clock::now().as_second()))
        .set_product_descriptions(Some(PRODUCTS.map(str::to_owned).to_vec()))
        .into_paginator()
        .page_size(SPOT_PAGE)
        .send();
    let prices = paginate::collect(account, "DescribeSpotPriceHistory", pages, |page, prices| {
        prices.extend(page.spot_price_history().iter().filter_map(spot_price));
    });
    let mut newest: BTreeMap<(TypeName, Zone), (i64, Price)> = BTreeMap::new();
    for (key, seconds, price) in prices.await? {
        if newest.get(&key).is_none_or(|(known, _)| *known <= seconds) {
            newest.insert(key, (seconds, price));
        }
    }
    let newest = newest.into_iter();
    let prices = newest.map(|((name, zone), (_, price))| (name, zone, price));
    Ok(prices.collect())
}

/// Converts a spot price, with its type, zone and time. `None` if it is missing or zero.
fn spot_price(listed: &SpotPrice) -> Option<((TypeName, Zone), i64, Price)> {
    let name = listed.instance_type()?.as_str();
    let zone = listed.availability_zone()?;
    let price = Price::new(listed.spot_price()?.parse().ok()?)?;
    let seconds = listed.timestamp().map_or(0, DateTime::secs);
    let key = (TypeName::from(name), Zone::from(zone));
    (price.usd_per_h() > 0.0).then_some((key, seconds, price))
}

#[cfg(test)]
mod tests {
    use super::parse_product;

    #[test]
    fn price_list_products_are_parsed() {
        for (price, expect) in [
            ("0.0960000000", Some(("m5.large".to_owned(), 0.096))),
            ("0.0000000000", None),
            ("free", None),
        ] {
            // The shape of the AWS Price List Query API, `GetProducts`.
            let text = format!(
                r#"{{"product":{{"attributes":{{"instanceType":"m5.large"}}}},
                "terms":{{"OnDemand":{{"A.B":{{"priceDimensions":{{"A.B.C":
                {{"pricePerUnit":{{"USD":"{price}"}}}}}}}}}}}}}}"#
            );
            let read = parse_product(&text, "USD").map(|(name, it)| (name.0, it.usd_per_h()));
            assert_eq!(read, expect, "{price}");
        }
        for wrong in ["{}", "[", ""] {
            assert_eq!(parse_product(wrong, "USD"), None, "{wrong}");
        }
    }
}
