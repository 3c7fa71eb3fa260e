//! The price list and spot prices. Source: the cases of spec/aws.md §12.11.

use std::time::Duration;

use serde_json::json;

use super::canned::{FakeAws, REGION, Reply};
use crate::providers::aws::pricing;

/// A product of the price list.
fn product(name: &str, currency: &str, price: &str) -> String {
    let unit = json!({ currency: price });
    let product = json!({
        "product": { "attributes": { "instanceType": name } },
        "terms": { "OnDemand": { "a": { "priceDimensions": { "b": { "pricePerUnit": unit } } } } },
    });
    product.to_string()
}

fn page(products: &[String], next: Option<&str>) -> Reply {
    Reply::Json(json!({ "PriceList": products, "NextToken": next }).to_string())
}

fn price_text<K: ToString>(all: impl IntoIterator<Item = (K, f64)>) -> String {
    let texts = all.into_iter().map(|(key, usd)| format!("{} {usd}", key.to_string()));
    texts.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn price_list_pages_are_read_in_the_currency_of_the_region() {
    for (region, currency, other) in [(REGION, "USD", "CNY"), ("cn-north-1", "CNY", "USD")] {
        let aws = FakeAws::new(move |request| {
            match (request.contains("\"Shared\""), request.contains("\"one\"")) {
                (true, false) => page(&[product("m5.large", currency, "0.096")], Some("one")),
                (true, true) => page(
                    &[
                        product("m5.xlarge", currency, "0.192"),
                        // A price of zero, a different currency, and no product.
                        product("m5.2xlarge", currency, "0.0"),
                        product("m5.4xlarge", other, "0.7"),
                        "{}".to_owned(),
                    ],
                    None,
                ),
                (false, _) => page(&[product("m5.metal", currency, "4.608")], None),
            }
        });
        let (shared, metal) =
            pricing::read_list_prices(&aws.account(region)).await.expect("prices");
        for (prices, expect) in
            [(shared, "m5.large 0.096, m5.xlarge 0.192"), (metal, "m5.metal 4.608")]
        {
            let prices = prices.into_iter().map(|(name, it)| (name, it.usd_per_h()));
            assert_eq!(price_text(prices), expect, "{region}");
        }
        let requests = aws.take_requests();
        for word in ["Used", "NA", "Linux", "OnDemand", region] {
            let word = format!("\"{word}\"");
            assert!(requests.iter().all(|it| it.contains(&word)), "{word}: {requests:?}");
        }
        assert!(requests[2].contains("\"Dedicated\"") && requests[2].contains("bare metal"));
        assert_eq!(requests.len(), 3);
    }
}

/// If any page fails, no prices are returned and the known prices are kept.
#[tokio::test]
async fn failed_price_list_page_returns_no_prices() {
    let aws = FakeAws::new(|request| match request.contains("\"Dedicated\"") {
        true => Reply::Error("ThrottlingException", "slow"),
        false => page(&[product("m5.large", "USD", "0.096")], None),
    });
    let fault = pricing::read_list_prices(&aws.account(REGION)).await;
    let failure = fault.expect_err("a fault").to_failure("pricing");
    assert_eq!(failure.sort, crate::ec2::errors::ErrorClass::Throttled);
    let aws = FakeAws::new(|_| Reply::NoResponse(Duration::ZERO));
    pricing::read_spot_prices(&aws.account(REGION)).await.expect_err("a fault");
}

/// Type, zone, price and hour of the entries, page by page. The newest of each type and zone
/// counts.
#[tokio::test]
async fn newest_spot_price_per_type_and_zone_is_used() {
    let pages: [&[(&str, &str, &str, u8)]; 2] = [
        &[
            ("m5.large", "us-west-2a", "0.05", 3),
            ("m5.large", "us-west-2a", "0.04", 5),
            ("m5.large", "us-west-2b", "0.03", 1),
        ],
        &[
            ("m5.large", "us-west-2a", "0.06", 4),
            ("c5.large", "us-west-2b", "0.02", 1),
            // Invalid prices.
            ("c5.large", "us-west-2a", "0.0", 1),
            ("c5.large", "us-west-2a", "free", 1),
            ("c5.large", "", "0.01", 1),
        ],
    ];
    let aws = FakeAws::new(move |request| {
        let page = usize::from(request.contains("NextToken=one"));
        let all = pages[page].iter().map(|(name, zone, price, hour)| {
            let zone = match *zone {
                "" => String::new(),
                zone => format!("<availabilityZone>{zone}</availabilityZone>"),
            };
            format!(
                "<item><instanceType>{name}</instanceType>{zone}<spotPrice>{price}</spotPrice>\
                 <timestamp>2026-01-01T0{hour}:00:00.000Z</timestamp></item>"
            )
        });
        let all: String = all.collect();
        let next = ["<nextToken>one</nextToken>", ""][page];
        Reply::Xml(format!("<spotPriceHistorySet>{all}</spotPriceHistorySet>{next}"))
    });
    let all = pricing::read_spot_prices(&aws.account(REGION)).await.expect("prices");
    let all =
        all.into_iter().map(|(name, zone, price)| (format!("{name} {zone}"), price.usd_per_h()));
    let expect = "c5.large us-west-2b 0.02, m5.large us-west-2a 0.04, m5.large us-west-2b 0.03";
    assert_eq!(price_text(all), expect);
    let requests = aws.take_requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert!(request.contains("ProductDescription.1=Linux/UNIX"), "{request:?}");
        assert!(request.contains("ProductDescription.2=Linux/UNIX (Amazon VPC)"));
        assert!(request.body.contains("StartTime="), "older prices are not requested");
    }
}
