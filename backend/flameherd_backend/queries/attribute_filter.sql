-- A sample has its own attributes and its resource's; its own win. Without one it is "".
if(mapContains(samples.attributes, $key), samples.attributes[$key] IN $wanted,
   resource_id IN (SELECT resource_id FROM resources WHERE attributes[$key] IN $wanted))
